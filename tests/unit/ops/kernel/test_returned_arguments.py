"""Operators that return what they write give the argument itself, on every path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.unit.ops.conftest import Define
from tests.unit.ops.support import ADD, each

from bringup import graphs, ops
from bringup.errors import ContractError

DOUBLE = each("DATA(0)[i] = DATA(0)[i] * 2;")
TENSOR = torch.Tensor
Operator = Callable[..., Any]


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


def _double(x: TENSOR) -> TENSOR:
    return x.mul_(2)


@pytest.fixture(params=["callable", "torch.ops", "custom_op", "Library"])
def double(
    request: pytest.FixtureRequest, define: Define, custom: Callable[..., ops.CustomOperator]
) -> Iterator[Operator]:
    schema = "(Tensor(a!) x) -> Tensor(a!)"
    if request.param == "custom_op":
        operator = custom(_double, schema=schema)
        operator.register_fake(lambda x: x)
        yield operator
    elif request.param == "Library":
        library = ops.Library("bringup_test_returned", "FRAGMENT")
        library.define(f"double_{schema}")
        library.impl("double_", _double, "CompositeExplicitAutograd")
        ops.register_fake("bringup_test_returned::double_", lambda x: x)
        yield torch.ops.bringup_test_returned.double_
        library._destroy()
    else:
        made = define(f"double_{schema}", source=DOUBLE, dtypes={"T": "x"})
        yield made if request.param == "callable" else made.overload


def test_the_result_is_the_argument(double: Operator) -> None:
    x = torch.ones(3)
    assert double(x) is x
    assert x.tolist() == [2, 2, 2]
    assert x._version > 0


def test_autograd_sees_one_tensor(define: Define) -> None:
    double = define("double_(Tensor(a!) x) -> Tensor(a!)", source=DOUBLE, dtypes={"T": "x"})
    define("halve(Tensor grad) -> Tensor", source=each("DATA(1)[i] = DATA(0)[i] * 2;"),
           outputs=ops.empty_like("grad"), dtypes={"T": "grad"})  # fmt: skip
    double.register_backward(f"{double.qualified_name.split('::')[0]}::halve")
    for path in (double, double.overload):
        x = torch.ones(3, requires_grad=True)
        y = x * 1
        assert path(y) is y
        assert y.grad_fn is not None
        y.sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [2, 2, 2]


def test_an_out_form_returns_it(define: Define) -> None:
    add = define("add(Tensor x, Tensor y, *, Tensor(a!) out) -> Tensor(a!)", source=ADD,
                 checks=ops.same_shape("x", "y", "out"), dtypes={"T": "x"})  # fmt: skip
    out = torch.empty(3)
    for path in (add, add.overload):
        assert path(torch.ones(3), torch.ones(3), out=out) is out


def test_several_are_a_tuple_and_a_list_is_a_list(define: Define) -> None:
    both = define("both(Tensor(a!) x, Tensor(b!) y) -> (Tensor(b!), Tensor(a!))",
                  checks=ops.kernel_checks())  # fmt: skip
    each_ = define("each_(Tensor x, Tensor(a!)[] ys) -> Tensor(a!)[]", checks=ops.kernel_checks())
    x, y = torch.ones(1), torch.ones(2)
    for path in (both, both.overload):
        results = path(x, y)
        assert type(results) is tuple
        assert results[0] is y
        assert results[1] is x
    given = [x, y]
    for path in (each_, each_.overload):
        listed = path(torch.ones(1), given)
        assert type(listed) is list
        assert listed is not given
        assert all(a is b for a, b in zip(listed, given, strict=True))


def used_later(double: Operator, x: TENSOR) -> Any:
    """Where an argument's memory given away too early would be written again."""
    y = x.clone()
    z = double(y)
    other = torch.mm(x + 1, x + 1)
    return (z * 1.0).sum() + torch.mm(other, other).sum(), z + other


def a_view(double: Operator, x: TENSOR) -> Any:
    return double(x[1:]) + 1, x


def returned(double: Operator, x: TENSOR) -> Any:
    z = double(x * 3)
    return z, torch.mm(torch.sin(x) + z, z)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("function", [used_later, a_view, returned])
def test_compiled_is_eager(double: Operator, function: Any, backend: str) -> None:
    x = torch.randn(3, 3)
    given, again = x.clone(), x.clone()
    expected = function(double, given)
    compiled = torch.compile(lambda t: function(double, t), fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(again), expected)
    assert torch.equal(given, again)


@pytest.mark.parametrize("strict", [True, False])
def test_exported_is_eager(double: Operator, strict: bool) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: TENSOR) -> TENSOR:
            return double(x.clone()) + 1

    program = torch.export.export(Model(), (torch.ones(3),), strict=strict)
    for exported in (program, program.run_decompositions()):
        assert exported.module()(torch.ones(3)).tolist() == [3, 3, 3]


def test_functionalized_is_eager(double: Operator) -> None:
    assert torch.func.functionalize(lambda x: double(x * 1) + 1)(torch.ones(3)).tolist() == [3] * 3


def test_a_batch_is_written_in_place(double: Operator) -> None:
    batch = torch.ones(2, 3)
    assert torch.vmap(double)(batch).tolist() == [[2] * 3] * 2
    assert batch.tolist() == [[2] * 3] * 2
    torch.vmap(lambda x: double(x).add_(1))(batch)  # what it returns is the batch
    assert batch.tolist() == [[5] * 3] * 2


def test_a_function_that_returns_another_tensor_is_refused(
    custom: Callable[..., ops.CustomOperator],
) -> None:
    operator = custom(lambda x: x * 2, schema="(Tensor(a!) x) -> Tensor(a!)")
    with pytest.raises(ContractError, match="returns its argument 'x', and the function returned"):
        operator(torch.ones(3))


def test_a_captured_graph_writes_it_again(define: Define) -> None:
    double = define("double_(Tensor(a!) x) -> Tensor(a!)", source=DOUBLE, dtypes={"T": "x"})
    for path in (double, double.overload):
        x = torch.ones(3)
        graph = graphs.CapturedGraph()
        with graphs.capture(graph):
            y = path(x) + 1
        graph.replay()
        assert (x.tolist(), y.tolist()) == ([2, 2, 2], [3, 3, 3])
        graph.replay()
        assert (x.tolist(), y.tolist()) == ([4, 4, 4], [5, 5, 5])
