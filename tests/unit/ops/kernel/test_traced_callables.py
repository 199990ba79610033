"""Dynamo takes a callable for its operator wherever it comes across it, as it takes `torch.mul`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from bringup import ops

USES: dict[str, Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "called": lambda f, x, y: f(x, y=y),
    "vmap": lambda f, x, y: torch.vmap(f)(x, y),
    "jacrev": lambda f, x, y: torch.func.jacrev(f)(x[0], y[0]),
    "grad": lambda f, x, y: torch.func.grad(lambda t: f(t, y).sum())(x),
    "hasattr": lambda f, x, y: x + hasattr(f, "__name__") + 2 * hasattr(f, "nonsense"),
    "map": lambda f, x, y: torch.stack(list(map(f, x, y))),
    "named": lambda f, x, y: x + len(f.__name__) + len(f.schema) + len(getattr(f, "no", "ab")),
    "a key": lambda f, x, y: {f: x + y}[f],
    "compared": lambda f, x, y: x + (f is torch.mul) + 2 * (f == f),
}


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("use", USES)
def test_traced_is_eager(mul: ops.KernelOperator, use: str) -> None:
    x, y = torch.randn(2, 3), torch.randn(2, 3)

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return USES[use](mul, x, y)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, y), function(x, y))


def test_the_graph_holds_the_operator(mul: ops.KernelOperator) -> None:
    targets: list[Any] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        targets.extend(n.target for n in graph.graph.nodes if n.op == "call_function")
        return graph

    torch.compile(lambda x: mul(x, x), fullgraph=True, backend=backend)(torch.ones(2))
    assert targets == [mul.overload]


def test_operators_are_traced_after_torch_forgot_its_rules(mul: ops.KernelOperator) -> None:
    """As `torch.distributed.init_process_group` makes it forget."""
    torch._dynamo.trace_rules.clear_lru_cache()
    compiled = torch.compile(lambda x: mul(x, x), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(torch.full((2,), 3.0)), torch.full((2,), 9.0))
