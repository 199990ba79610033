"""Operators whose schema says that they return views: eager, with a gradient, compiled."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from bringup import ops

_numbers = itertools.count()
Make = Callable[[str, Callable[..., Any]], Any]

VIEWS: dict[str, tuple[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "int": ("(Tensor(a) x, int i) -> Tensor(a)", lambda x, i: x[i], (1,), {}),
    "SymInt": ("(Tensor(a) x, SymInt i) -> Tensor(a)", lambda x, i: x[i], (1,), {}),
    "ints": ("(Tensor(a) x, int[] s) -> Tensor(a)", lambda x, s: x.view(s), ([3, 2],), {}),
    "SymInts": ("(Tensor(a) x, SymInt[] s) -> Tensor(a)", lambda x, s: x.view(s), ([3, 2],), {}),
    "fixed": ("(Tensor(a) x, SymInt[2] s) -> Tensor(a)", lambda x, s: x.view(s), ([3, 2],), {}),
    "optional": ("(Tensor(a) x, int? i=None) -> Tensor(a)", lambda x, i=None: x[i or 1], (), {}),
    "optional list": (
        "(Tensor(a) x, SymInt[]? s=None) -> Tensor(a)", lambda x, s=None: x.view(s or [6]), (), {},
    ),
    "keyword": ("(Tensor(a) x, *, int i=0) -> Tensor(a)", lambda x, i=0: x[i], (), {"i": 1}),
    "list": ("(Tensor(a -> *) x, int n) -> Tensor(a)[]", lambda x, n: list(x.split(n)), (1,), {}),
}  # fmt: skip


def _custom(schema: str, function: Callable[..., Any]) -> tuple[Any, Callable[[], None]]:
    operator = ops.custom_op(
        f"bringup_test_view::f{next(_numbers)}", function, schema=schema, mutates_args=()
    )
    operator.register_fake(function)
    return operator, operator.undefine


def _library(schema: str, function: Callable[..., Any]) -> tuple[Any, Callable[[], None]]:
    library, name = ops.Library("bringup_test_view", "FRAGMENT"), f"f{next(_numbers)}"
    library.define(name + schema)
    library.impl(name, function, "CPU")
    library.impl(name, function, "Meta")
    return getattr(torch.ops.bringup_test_view, name).default, library._destroy


@pytest.fixture(params=[_custom, _library])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    removals: list[Callable[[], None]] = []

    def defined(schema: str, function: Callable[..., Any]) -> Any:
        operator, remove = request.param(schema, function)
        removals.append(remove)
        return operator

    yield defined
    for remove in removals:
        remove()


def _first(result: Any) -> torch.Tensor:
    found: torch.Tensor = result[0] if isinstance(result, list | tuple) else result
    return found


@pytest.mark.parametrize("kind", VIEWS)
def test_a_write_through_the_view_reaches_its_base_in_every_way_to_run(
    make: Make, kind: str
) -> None:
    schema, function, args, kwargs = VIEWS[kind]
    operator = make(schema, function)

    def write(call: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
        base = x * 1
        _first(call(base, *args, **kwargs)).add_(5)
        return base

    x = torch.arange(6.0).view(2, 3).clone()
    expected = write(function, x)
    assert torch.equal(write(operator, x), expected)
    assert _first(operator(x, *args, **kwargs))._base is x
    for dynamic in (False, True):
        torch._dynamo.reset()
        compiled = torch.compile(
            lambda x: write(operator, x), fullgraph=True, backend="aot_eager", dynamic=dynamic
        )
        assert torch.equal(compiled(x), expected)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor", "bringup"])
def test_the_gradient_of_a_view_with_a_number_is_the_same_eager_and_compiled(backend: str) -> None:
    operator, remove = _custom("(Tensor(a) x, int i) -> Tensor(a)", lambda x, i: x[i])

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.shape, ctx.row = inputs[0].shape, inputs[1]

    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        whole = grad.new_zeros(ctx.shape)
        whole[ctx.row] = 2 * grad  # not what torch would find by itself
        return whole, None

    operator.register_autograd(backward, setup_context=setup)
    x = torch.ones(2, 3, requires_grad=True)

    def run(x: torch.Tensor) -> torch.Tensor:
        return operator(x * 2, 1) * 3

    gradients = [
        torch.autograd.grad(call(x).sum(), x)[0].tolist()
        for call in (run, torch.compile(run, fullgraph=True, backend=backend))
    ]
    assert gradients == [[[0, 0, 0], [12, 12, 12]]] * 2
    remove()


def test_a_view_without_a_gradient_says_so_and_names_itself() -> None:
    operator, remove = _custom("(Tensor(a) x, int i) -> Tensor(a)", lambda x, i: x[i])
    with pytest.raises(NotImplementedError, match=f"{operator.qualified_name} has no backward"):
        operator(torch.ones(2, 3, requires_grad=True), 1).sum().backward()
    remove()


def test_a_view_that_turns_out_to_be_none_is_refused_when_compiled(make: Make) -> None:
    operator = make("(Tensor(a) x, int i) -> Tensor(a)", lambda x, i: x[i].clone())
    with pytest.raises(Exception, match=r"cannot be compiled: its schema says .* a view"):
        torch.compile(lambda x: operator(x * 1, 1), backend="aot_eager")(torch.ones(2, 3))
