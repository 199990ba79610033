"""Patterns and boundaries written in C++, on torch graphs."""

import shutil

import pytest
import torch
from tests.oracles.matching import compare_passes_with_oracle
from tests.unit.passes.native_libraries import LIBRARIES, build
from torch.fx.experimental.proxy_tensor import make_fx

from bringup import compiler, passes
from bringup.errors import PassError


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The library with the passes of this file, built once."""
    return build(LIBRARIES / "pieces.cpp", tmp_path_factory.mktemp("built") / "pieces.so")


@pytest.fixture(autouse=True)
def on_the_path(library, tmp_path, monkeypatch):
    shutil.copy(library, tmp_path)
    monkeypatch.setenv("BRINGUP_PASS_PATH", str(tmp_path))
    yield
    passes.unload_pass_plugins()


def operators(module):
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


def rewritten(traced, name, function, *inputs):
    """The traced function after the pass, its result, and what the pass did; results compared."""
    module = traced(function, *inputs)
    result = compiler.apply_passes(module, passes=[name])[name]
    torch.testing.assert_close(module(*inputs), function(*inputs))
    return module, result


@pytest.mark.parametrize(
    ("function", "shapes", "activation"),
    [
        (lambda x, w, c: torch.relu(x @ w + c), [(4, 8), (8, 3), (3,)], "relu"),
        (lambda x, w: torch.relu(x @ w), [(4, 8), (8, 3)], "relu"),
        (lambda x, w, c: torch.tanh(x @ w + c), [(4, 8), (8, 3), (3,)], "tanh"),
    ],
)
def test_optional_part_alternatives_and_tensor_forms_in_cpp(
    traced, monkeypatch, function, shapes, activation
):
    """Forms with named sizes, a bias that may be absent, one of two activations."""
    compare_passes_with_oracle(monkeypatch)
    inputs = [torch.randn(shape) for shape in shapes]
    module, result = rewritten(traced, "MmToLinear", function, *inputs)
    assert result.matches == 1
    assert operators(module) == [
        "aten.t.default",
        "aten.linear.default",
        f"aten.{activation}.default",
    ]


def test_hook_in_cpp_reads_a_named_size_that_is_symbolic():
    """Its replacement asks for the rows "T" of a graph whose sizes are expressions."""

    def function(x, w, c):
        return torch.relu(x @ w + c)

    inputs = [torch.randn(shape) for shape in [(4, 8), (8, 3), (3,)]]
    module = make_fx(function, tracing_mode="symbolic")(*inputs)
    result = compiler.apply_passes(module, passes=["MmToLinear"])["MmToLinear"]
    assert result.matches == 1
    assert "aten.linear.default" in operators(module)
    torch.testing.assert_close(module(*inputs), function(*inputs))


def test_tensor_form_in_cpp_refuses_and_says_why(traced):
    """Another rank is a near miss that names expected and got."""
    inputs = [torch.randn(4, 8), torch.randn(8, 3), torch.randn(1, 3)]
    module, result = rewritten(traced, "MmToLinear", lambda x, w, c: torch.relu(x @ w + c), *inputs)
    assert result.matches == 0
    assert "the rank of 'c' differs" in str(result.near_misses[0])
    assert "aten.mm.default" in operators(module)


def test_list_of_patterns_in_cpp_reads_its_items(traced):
    """A list of any length, every item a pattern, read by the replacement."""
    inputs = [torch.randn(2, 3), torch.randn(4, 3), torch.randn(5, 3)]

    def function(a, b, c):
        return torch.cat([a.relu(), b.relu(), c.relu()]), torch.cat([a.relu(), b])

    module, result = rewritten(traced, "ReluAfterCat", function, *inputs)
    assert result.matches == 1
    assert operators(module) == [
        "aten.cat.default",
        "aten.relu.default",
        "aten.relu.default",
        "aten.cat.default",
    ]


def test_constant_with_a_tolerance_in_cpp(traced):
    """A number in the call, near enough; its operand is captured under two names."""

    def function(x):
        return torch.exp(x * 1.0000001), x * 1.5

    module, result = rewritten(traced, "DropUnitScale", function, torch.randn(3))
    assert result.matches == 1
    assert operators(module) == ["aten.exp.default", "aten.mul.Tensor"]


def test_boundary_in_cpp_is_replaced_and_its_operators_bound(traced):
    """New nodes have overloads, shapes and the rule's name."""
    module, result = rewritten(traced, "ReciprocalOfExp", lambda x: 1 + (-x).exp(), torch.randn(3))
    assert result.status is passes.PassStatus.CHANGED
    assert operators(module) == ["aten.exp.default", "aten.reciprocal.default", "aten.add.Tensor"]
    assert all("val" in node.meta for node in module.graph.nodes if node.op == "call_function")
    new = next(node for node in module.graph.nodes if "reciprocal" in str(node.target))
    assert new.meta["bringup"] == {"rule": "ReciprocalOfExp", "replaces": ("neg", "exp")}


def test_boundary_that_is_not_self_contained_fails_the_pass_with_its_reason(traced):
    """The engine's words reach the report; nothing is changed."""

    def function(x):
        y = -x
        return y.exp() + y

    module = traced(function, torch.randn(3))
    code = str(module.graph)
    with pytest.raises(PassError, match="because of 'neg': its output 0 is used outside by"):
        compiler.apply_passes(module, passes=["ReciprocalOfExp"])
    assert str(module.graph) == code
