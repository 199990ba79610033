"""What programs for conditional nodes (CUDA's, torch_npu's) do with `torch.cond` in a capture, on a
device: every row is replayed with all values of its predicates, whatever the capture has taken.

Of torch_npu's 17 rows 13 are here. It refuses three that work here: draws in a branch, a predicate
of the host and one that is no bool (test_followed_branches.py). One is refused: gradients that lead
through a branch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from bringup import devices, graphs

Cond = Callable[..., Any]


@pytest.fixture(scope="module", autouse=True)
def _npu() -> None:
    devices.load_driver("sim")


def recorded(pred: Tensor, true_fn: Any, false_fn: Any, operands: Any) -> Any:
    """As torch.cond behind Dynamo, which takes a second: results are tuples there."""
    results = torch.ops.higher_order.cond(
        pred,
        lambda *args: tuple(tree_leaves(true_fn(*args))),
        lambda *args: tuple(tree_leaves(false_fn(*args))),
        operands,
    )
    return results[0] if len(results) == 1 else results


def plain(pred: Tensor, true_fn: Any, false_fn: Any, operands: Any) -> Any:
    return (true_fn if pred.item() else false_fn)(*operands)


def _sin(x: Tensor) -> Tensor:
    return x.sin()


def _cos(x: Tensor) -> Tensor:
    return x.cos()


def _copied(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Into memory that the branch allocates."""
    return lambda x: torch.empty_like(x).copy_(change(x))


def one(cond: Cond, x: Tensor, pred: Tensor) -> Any:
    return cond(pred, _sin, _cos, (x,))


def several_results(cond: Cond, x: Tensor, pred: Tensor) -> Any:
    a, b = cond(pred, lambda x: (x.sin(), x + 1), lambda x: (x.cos(), x - 1), (x,))
    return a + b


def nested(cond: Cond, x: Tensor, p: Tensor, q: Tensor, r: Tensor) -> Any:
    def trigonometric(x: Tensor) -> Any:
        return cond(r, _sin, _cos, (x,))

    def shifted(x: Tensor) -> Any:
        return cond(r, lambda x: x + 1, lambda x: x - 1, (x,))

    return cond(
        p,
        lambda x: cond(q, trigonometric, shifted, (x,)),
        lambda x: cond(q, shifted, trigonometric, (x,)),
        (x,),
    )


def read_behind(cond: Cond, x: Tensor, pred: Tensor) -> Any:
    return cond(pred, lambda x: x * x, lambda x: x + x, (x,)) + x


def two_independent(cond: Cond, x: Tensor, p: Tensor, q: Tensor) -> Any:
    def square(x: Tensor) -> Tensor:
        return x * x

    def double(x: Tensor) -> Tensor:
        return x + x

    return cond(p, square, double, (x,)) + cond(q, double, square, (x,))


def no_operands(cond: Cond, _x: Tensor, pred: Tensor) -> Any:
    def numbers(value: float) -> Callable[[], Tensor]:
        return lambda: torch.full((4,), value, device="npu")

    return cond(pred, numbers(1.0), numbers(0.0), ())


def written_in_a_branch(cond: Cond, x: Tensor, pred: Tensor) -> Any:
    return cond(
        pred, lambda x: x.sin().max() + x.sin().add_(4).sum(), lambda x: x.cos().min(), (x,)
    )


def numbers_behind(cond: Cond, x: Tensor, pred: Tensor) -> Any:
    y = cond(pred, lambda x: x * 2, lambda x: x * 3, (x,))
    return y + torch.randn_like(y)


def allocations(cond: Cond, x: Tensor, pred: Tensor) -> Any:
    return cond(pred, _copied(lambda x: x + 1), _copied(lambda x: x - 1), (x,))


def several_allocations(cond: Cond, x: Tensor, pred: Tensor) -> Any:
    more, less = _copied(lambda x: x + 1), _copied(lambda x: x - 1)
    sin, cos = _copied(_sin), _copied(_cos)
    a, b = cond(pred, lambda x: (sin(x), more(x)), lambda x: (cos(x), less(x)), (x,))
    return a + b


def allocations_without_operands(cond: Cond, _x: Tensor, pred: Tensor) -> Any:
    a, b = cond(
        pred,
        lambda: (torch.zeros(8, device="npu"), torch.zeros(8, device="npu")),
        lambda: (torch.ones(8, device="npu"), torch.ones(8, device="npu")),
        (),
    )
    return a + b


def nested_allocations(cond: Cond, x: Tensor, p: Tensor, q: Tensor) -> Any:
    sin, cos = _copied(_sin), _copied(_cos)
    more, less = _copied(lambda x: x + 1), _copied(lambda x: x - 1)
    return cond(
        p,
        lambda x: cond(q, sin, cos, (more(x),)),
        lambda x: cond(q, cos, sin, (less(x),)),
        (x,),
    )


ROWS = (
    one, several_results, nested, read_behind, two_independent, no_operands, written_in_a_branch,
    numbers_behind, allocations, several_allocations, allocations_without_operands,
    nested_allocations,
)  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.__name__)
def test_a_replay_gives_what_the_program_gives_without_a_capture(row: Callable[..., Any]) -> None:
    preds = [torch.tensor(True, device="npu") for _ in range(row.__code__.co_argcount - 2)]
    x = torch.randn(4, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, stream=torch.npu.Stream()):
        y = row(recorded, x, *preds)
    for values in itertools.product((False, True), repeat=len(preds)):
        for pred, value in zip(preds, values, strict=True):
            pred.fill_(value)
        torch.manual_seed(0)
        expected = row(plain, x, *preds)
        torch.manual_seed(0)
        graph.replay()
        torch.npu.synchronize()
        assert torch.equal(y.cpu(), expected.cpu()), values


def test_functionalized_branches_give_what_they_give_without() -> None:
    def run(x: Tensor) -> Tensor:
        return torch.cond(
            x.shape[0] == 1,
            lambda x: x.sin().max() + x.sin().add_(4).sum(),
            lambda x: x.cos().min(),
            (x,),
        )

    x, graph = torch.ones(4, 5, device="npu"), graphs.CapturedGraph()
    with graphs.capture(graph):
        y = torch.func.functionalize(run)(x)
    x.fill_(2)
    graph.replay()
    assert y.item() == x.cos().min().item()
