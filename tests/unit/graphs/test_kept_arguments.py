"""What a call in Python keeps of a replay lasts, whatever becomes of the graph."""

from __future__ import annotations

import gc
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from bringup import devices, graphs

_keep: list[list[Tensor]] = []
"""Where calls keep what they see, if anywhere."""


@torch.library.custom_op("kept_test::act", mutates_args=())
def act(x: Tensor) -> Tensor:
    result = x * 2
    between = result + 1
    for kept in _keep:
        kept.extend((x, x[1:], between, result))
    return result


@act.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("kept_test::write", mutates_args=("x",))
def write(x: Tensor) -> None:
    for kept in _keep:
        kept.append(x)
    x.add_(1)


@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_what_a_call_keeps_outlives_the_graph(level: int, device: str) -> None:
    devices.load_driver("sim")
    x = torch.full((5000,), 2.0, device=device)
    graph = graphs.CapturedGraph(optimize=level)
    with torch.no_grad(), graphs.capture(graph):
        y = x * 3
        write(y)
        z = act(y) + 1
    assert graph.wait_for_functions()
    kept: list[Tensor] = []
    _keep.append(kept)
    try:
        graph.replay()
        assert z[0].item() == 15
    finally:
        _keep.clear()
    assert [one[0].item() for one in kept] == [7, 7, 7, 15, 14]
    graph.reset()
    del graph, y, z
    gc.collect()
    others = [torch.zeros(5000, device=device) for _ in range(20)]
    assert [one.unique().tolist() for one in kept] == [[7], [7], [7], [15], [14]]
    for one in kept:
        one.fill_(9)
    assert not any(other.cpu().any() for other in others)


class Act(graphs.GraphOpHandler):
    """Lets updates give the operator other tensors."""

    UPDATE_SPECS: ClassVar = {"kept_test::act": [("arg", 0, "x")]}


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_what_a_call_keeps_of_an_updated_tensor_stays(device: str) -> None:
    devices.load_driver("sim")
    kept: list[Tensor] = []
    graph, other = graphs.CapturedGraph(), torch.zeros(5000, device=device)
    with graphs.graph_handler_scope("kept_test::act", Act), torch.no_grad():
        with graphs.capture(graph):
            z = act(torch.zeros(5000, device=device)[:]) + act(other)
        _keep.append(kept)
        try:
            for value in range(40):  # nothing waits
                graph.update({"act.1.x": torch.full((5000,), float(value), device=device)})
                graph.replay()
            assert z[0].item() == 78
        finally:
            _keep.clear()
    first = [one.unique().tolist() for one in kept[4::8]]
    assert first == [[value] for value in range(40)]
    assert [one.numel() for one in kept[4:6]] == [5000, 4999]
