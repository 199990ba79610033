"""What `run` does about memory that more than one name, tensor or graph has."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from bringup import graphs
from bringup.errors import CaptureError, ContractError


def captured(run: Callable[..., Any], *inputs: Tensor) -> graphs.CapturedGraph:
    graph = graphs.CapturedGraph()
    with torch.no_grad(), graphs.capture(graph, inputs=inputs):
        graph.outputs = run(*inputs)
    return graph


def test_graphs_over_one_buffer_run_in_turn() -> None:
    buffer = torch.zeros(8, 64)
    made = [captured(lambda x: (x * 2).cumsum(1), buffer[:n]) for n in (4, 8)]
    wrong: list[float] = []

    def serve(graph: graphs.CapturedGraph, rows: int) -> None:
        for number in range(200):
            value = float(number + rows)
            given = torch.full((rows, 64), value)
            wrong.extend(() if torch.equal(graph.run(given), (given * 2).cumsum(1)) else (value,))

    threads = [
        threading.Thread(target=serve, args=(graph, rows))
        for graph, rows in zip(made, (4, 8), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    "change",
    [
        lambda y: y.set_(torch.full((3,), 7.0)),
        lambda y: setattr(y, "data", torch.full((3,), 7.0)),
        lambda y: y.unsqueeze_(0),
    ],
    ids=["set_", "data", "unsqueeze_"],
)
def test_results_are_the_graphs_whatever_the_users_tensor_becomes(
    change: Callable[[Tensor], object],
) -> None:
    graph = captured(lambda x: x + 1, torch.zeros(3))
    change(graph.outputs)
    assert graph.run(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]


def test_input_that_is_read_by_an_earlier_view_is_refused_when_its_memory_is_replaced() -> None:
    base = torch.zeros(6)
    view = base.view(2, 3)
    graph = captured(lambda _base: view * 2, base)
    assert graph.run(torch.ones(6)).tolist() == [[2.0] * 3] * 2
    base.data = torch.zeros(6)
    with pytest.raises(CaptureError, match=r"the input 'inputs\[0\]' \(float32\[6\] on cpu\) has"):
        graph.run(torch.ones(6))


def test_input_whose_elements_overlap_takes_no_other_tensor() -> None:
    windows = torch.zeros(4).unfold(0, 2, 1)
    graph = captured(lambda x: x * 2, windows)
    assert graph.run(windows).shape == (3, 2)
    with pytest.raises(ContractError, match="cannot be written"):
        graph.run(torch.arange(6.0).view(3, 2))


def test_arrays_of_numpy_that_overlap_are_one_memory() -> None:
    array = np.zeros(6, np.float32)
    graph = captured(lambda x, y: x + y, torch.from_numpy(array[:4]), torch.from_numpy(array[2:]))
    with pytest.raises(ContractError, match="shares memory with another input"):
        graph.run(torch.ones(4), torch.from_numpy(array[2:]))


def test_given_array_that_overlaps_a_captured_one_is_read_before_it_is_written() -> None:
    array = np.arange(6, dtype=np.float32)
    graph = captured(lambda x, y: x * 10 + y, torch.from_numpy(array[:4]), torch.zeros(4))
    expected = torch.full((4,), 10.0) + torch.from_numpy(array[2:].copy())
    assert torch.equal(graph.run(torch.ones(4), torch.from_numpy(array[2:])), expected)


class _Scaled(nn.Module):
    def forward(self, x: Tensor, factor: float = 1.0, dims: tuple[int, ...] = ()) -> Tensor:
        return x.sum(dims) * factor if dims else x * factor


def captured_call(*args: Any) -> graphs.CapturedGraph:
    graph, model = graphs.CapturedGraph(), _Scaled()
    with graphs.capture(graph):
        model(*args)
    return graph


def test_numbers_are_compared_by_their_bits() -> None:
    graph = captured_call(torch.ones(2), 0.0)
    with pytest.raises(ContractError, match=r"'factor' was 0.0"):
        graph.run(torch.ones(2), -0.0)
    nan = captured_call(torch.ones(2), math.nan)
    assert nan.run(torch.ones(2), float("nan")).isnan().all()


def test_nest_of_numbers_has_the_captured_length() -> None:
    graph = captured_call(torch.ones(2, 3), 1.0, (0, 1))
    assert graph.run(torch.ones(2, 3), 1.0, (0, 1)).item() == 6
    with pytest.raises(TypeError, match=r"'dims\[1\]' is missing"):
        graph.run(torch.ones(2, 3), 1.0, (0,))
    with pytest.raises(TypeError, match=r"'dims\[0\]' is missing"):
        graph.run(torch.ones(2, 3), 1.0, ())


def test_input_with_a_tangent_is_refused() -> None:
    graph = captured(lambda x: x * 2, torch.zeros(3))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(3), torch.ones(3))
        with pytest.raises(ContractError, match="has a tangent"):
            graph.run(dual)


def test_input_that_is_passed_through_is_a_result() -> None:
    graph = captured(lambda x, y: (x + 1, y.unsqueeze(0), y), torch.zeros(2), torch.zeros(3))
    first, view, same = graph.run(torch.ones(2), torch.full((3,), 5.0))
    assert (first.tolist(), view.tolist(), same.tolist()) == ([2, 2], [[5, 5, 5]], [5, 5, 5])


@dataclasses.dataclass(slots=True)
class _Slots:
    tensor: Tensor


def test_tensor_that_the_run_replaces_in_a_slot_is_refused() -> None:
    state = _Slots(torch.zeros(2))
    with (
        pytest.raises(CaptureError, match=r"state\.tensor"),
        graphs.capture(graphs.CapturedGraph()),
    ):
        state.tensor = state.tensor + 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x, mask: (torch.relu(x), mask.to(x.dtype))[0],
        lambda x, h: (torch.relu(x), h.unsqueeze(0)),
        lambda x, h: (torch.relu(x), h.detach()),
    ],
    ids=["dead", "view", "detached"],
)
def test_compiled_function_need_not_read_every_argument(function: Callable[..., Any]) -> None:
    compiled = torch.compile(function, backend="bringup", options={"capture": True})
    with torch.no_grad():
        for value in (1.0, 2.0):
            given = torch.full((3,), value), torch.full((4,), value + 1)
            torch.testing.assert_close(compiled(*given), function(*given))
    torch.compiler.reset()


def test_module_that_raises_in_the_block_is_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"), graphs.capture(graphs.CapturedGraph()):
        Fails()(torch.ones(2))
    assert [str(item.message) for item in recwarn if "hook" in str(item.message)] == []
