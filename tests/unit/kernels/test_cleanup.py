"""What the library takes out of graphs: operators that are called twice, views of views."""

import pytest
import torch
from tests.unit.passes.support import empty_registry
from torch.fx.experimental.proxy_tensor import make_fx

from bringup import compiler
from bringup.kernels.patterns import register_patterns

__all__ = ["empty_registry"]


def cleaned(function, *examples, only, mode="fake"):
    """The operators of a function after a pass of the library, and the pass's result."""
    register_patterns([only])
    module = make_fx(function, tracing_mode=mode)(*examples)
    report = compiler.apply_passes(module)
    got, expected = module(*examples), function(*examples)
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    operators = [
        str(node.target).removeprefix("aten.").partition(".")[0]
        for node in module.graph.nodes
        if node.op == "call_function"
    ]
    return operators, report[f"Library{only}"]


X = torch.randn(2, 8)


def test_same_calls_become_one_and_what_they_make_equal_does_too():
    def function(x):
        return (x.relu() + 1) * (x.relu() + 1)

    operators, result = cleaned(function, X, only="MergeEqual")
    assert operators == ["relu", "add", "mul"]
    assert result.matches == 2


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x + 1) * (x + 2),
        lambda x: (x + 1) * (x + 1.0),  # an integer may be promoted in another way
        lambda x: torch.full_like(x, 0.0) / (x * 0 + torch.full_like(x, -0.0)),
        lambda x: x.sum(0) * x.sum(1).sum(),
        lambda x: torch.rand_like(x) * 0 + torch.rand_like(x) * 0,
        lambda x: (x.relu(), x.relu()),  # the caller may write one of them
        lambda x: ((x * 1).view(16), (x * 1).view(16)),
    ],
)
def test_calls_that_differ_stay(function):
    operators, result = cleaned(function, X, only="MergeEqual")
    assert result.matches == 0
    assert operators


def test_graph_that_writes_memory_stays():
    def function(x):
        y = x.clone()
        first = y.relu()
        y.add_(1)
        return first + y.relu()

    _, result = cleaned(function, X, only="MergeEqual")
    assert result.matches == 0
    assert "writes memory" in result.message


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_slice_of_everything_goes(mode):
    def function(x):
        whole = torch.ops.aten.slice.Tensor(x * 2, 1, 0, 2**63 - 1)
        return whole.relu()

    operators, result = cleaned(function, X, only="DropCopies", mode=mode)
    assert operators == ["mul", "relu"]
    assert result.matches == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 2)[:, 1:].relu(),
        lambda x: (x * 2)[:, ::2].relu(),
        lambda x: (x * 2)[:1].relu(),
        lambda x: (x * 2)[:, :-1].relu(),
        lambda x: torch.ops.aten.slice.Tensor(x * 2, 1, 0, 2**63 - 1),  # the caller may write it
    ],
)
@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_slice_of_a_part_or_for_the_caller_stays(function, mode):
    operators, _ = cleaned(function, X, only="DropCopies", mode=mode)
    assert operators.count("slice") == 1


def test_calls_with_several_results_are_merged():
    def function(x):
        first, second = x.split(4, 1), x.split(4, 1)
        return first[0] * second[1]

    operators, _ = cleaned(function, X, only="MergeEqual")
    assert operators.count("split") == 1


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x + 1).view(-1).view(4, -1) * 2,
        lambda x: (x + 1).view(-1, 2, 4).view(-1, 8) * 2,
        lambda x: (x + 1).view(x.shape[0] * x.shape[1]).view(x.shape[1], x.shape[0]) * 2,
        lambda x: (x + 1).view(1, x.shape[0], -1).view(x.shape[0], -1, 4) * 2,
    ],
)
def test_views_of_views_are_one_where_the_shape_is_certain(function, mode):
    operators, result = cleaned(function, torch.randn(6, 8), only="CollapseViews", mode=mode)
    assert operators.count("view") <= 2 - result.matches
    assert result.matches == 1 or mode == "symbolic"


def test_view_back_to_the_shape_of_the_source_goes():
    def function(x):
        return (x + 1).view(16).view(2, 8) * 2

    operators, _ = cleaned(function, X, only="CollapseViews")
    assert operators == ["add", "mul"]


def test_view_between_is_kept_for_its_other_readers():
    def function(x):
        inner = (x + 1).view(16)
        return inner.view(4, 4) * 2, inner * 3

    operators, _ = cleaned(function, X, only="CollapseViews")
    assert operators == ["add", "view", "view", "mul", "mul"]


def test_views_over_strided_memory_stay_right():
    def function(x):
        return (x.t().relu().view(4, 2, 2).view(8, 2) * 2), x[:, ::2].view(2, 2, 2).view(2, 4) + 1

    cleaned(function, X, only="CollapseViews")


def test_result_that_is_a_view_stays_as_it_is():
    operators, result = cleaned(lambda x: (x + 1).view(16).view(4, 4), X, only="CollapseViews")
    assert operators == ["add", "view", "view"]
    assert result.matches == 0
