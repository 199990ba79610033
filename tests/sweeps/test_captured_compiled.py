"""Captures of compiled functions, by name: replays give what compiled calls give, bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from tests.compiled_functions import ROWS, Row, gradients_of, shared
from tests.sweeps.support import FULL, part

from bringup import devices, graphs
from bringup.errors import CaptureError

REFUSED: dict[str, str] = {}
"""Rows that a capture refuses, with a part of its words."""


@pytest.fixture(scope="module", autouse=True)
def _npu() -> None:
    devices.load_driver("sim")


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _inputs(row: Row, seed: int) -> list[Any]:
    torch.manual_seed(seed)
    return [value.to("npu") for value in row.inputs()]


def _compare(run: Callable[[Sequence[Any]], Any], row: Row, gradients: bool) -> None:
    """Replay with other inputs; what is written in place is compared, too."""
    given, former = _inputs(row, 0), _inputs(row, 0)
    run(former)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph, gradients=gradients):
        got = run(given)
    for seed in (1, 2):
        others = _inputs(row, seed)
        for mine, other in zip(given, others, strict=True):
            mine.copy_(other)
        graph.replay()
        expected = run(others)
        mine_all, its_all = map(torch.utils._pytree.tree_leaves, ((got, given), (expected, others)))
        for mine, its in zip(mine_all, its_all, strict=True):
            assert mine.dtype == its.dtype
            assert torch.equal(_bits(mine), _bits(its))


@pytest.mark.parametrize("name", part(list(ROWS)[::-1]))
def test_calls_of_reduced_overhead_give_what_compiled_calls_give(name: str) -> None:
    function = ROWS[name].function
    fast = torch.compile(function, fullgraph=True, mode="reduce-overhead")
    plain = torch.compile(function, fullgraph=True)
    former: list[Any] = []
    for seed in (0, 1, 0):
        given, same = _inputs(ROWS[name], seed), _inputs(ROWS[name], seed)
        former.append((fast(*given), plain(*same), given, same))
    for got, expected, given, same in former:  # no call overwrote what another gave
        assert shared(given, got) == shared(same, expected)
        mine_all, its_all = map(torch.utils._pytree.tree_leaves, ((got, given), (expected, same)))
        for mine, its in zip(mine_all, its_all, strict=True):
            assert mine.stride() == its.stride()
            assert torch.equal(_bits(mine), _bits(its))
    for seed in (0, 1) if ROWS[name].gradient else ():
        got, expected = (gradients_of(f, _inputs(ROWS[name], seed)) for f in (fast, plain))
        for mine, its in zip(got, expected, strict=True):
            assert torch.equal(_bits(mine), _bits(its))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return plain.detach().cpu().flatten().view(torch.uint8)


@pytest.mark.parametrize("name", part(list(ROWS)))
def test_replays_give_what_compiled_calls_give(name: str) -> None:
    row = ROWS[name]
    compiled = torch.compile(row.function, fullgraph=True)
    if name in REFUSED:
        with pytest.raises(CaptureError, match=REFUSED[name]):
            _compare(lambda inputs: compiled(*inputs), row, False)
        return
    _compare(lambda inputs: compiled(*inputs), row, False)
    if row.gradient:
        _compare(lambda inputs: gradients_of(compiled, inputs), row, True)


@pytest.mark.skipif(not FULL, reason="compiles C++ for the cpu: in make sweep")
def test_kernels_for_the_cpu_are_refused_and_nothing_is_written() -> None:
    def function(x: torch.Tensor, n: torch.Tensor) -> Any:
        return x.mul_(2), (n + 1).sin()

    x, number = torch.ones(3, device="npu"), torch.tensor(2.0)
    with (
        pytest.raises(CaptureError, match="kernels for the cpu"),
        graphs.capture(graphs.CapturedGraph()),
    ):
        torch.compile(function)(x, number)
    assert torch.equal(x.cpu(), torch.ones(3))
