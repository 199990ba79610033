"""Replays and runs of other graphs in a capture: parts of it, between two of its pieces."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.unit.graphs.test_pieces import attend, split
from torch import Tensor

from bringup import devices, graphs
from bringup.errors import CaptureError


@pytest.fixture(params=["cpu", "npu"])
def device(request: pytest.FixtureRequest) -> str:
    devices.load_driver("sim")
    return str(request.param)


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("inner_device", ["cpu", "npu"])
def test_graphs_replay_others(device: str, inner_device: str, level: int) -> None:
    """A replay in a capture is a node, with the slots that the other graph has by then."""
    x, weight = torch.ones(2, 4).to(inner_device), torch.randn(4, 4).to(inner_device)
    cache, total = torch.randn(2, 5, 4).to(inner_device), torch.zeros(2, 4, device=device)
    inner, y = split(lambda: attend(x @ weight, cache, [1, 2]) * 2, [attend])
    given = torch.randn(2, 4).to(device)
    before = [one.clone() for one in (x, y, total)]

    def run() -> Tensor:
        x.copy_(given * 2)
        inner.replay()
        return total.add_(y.to(device)).relu() * 3

    outer = graphs.CapturedGraph(optimize=level)
    with graphs.capture(outer):
        z = run()
    assert all(map(torch.equal, (x, y, total), before)), "nothing has happened yet"
    assert [piece.then for piece in outer.pieces] == ["replay", ""]
    assert outer.wait_for_functions(120)
    expected = torch.zeros(2, 4)
    for lengths in ([1, 2], [5, 3]):
        given.copy_(torch.randn(2, 4))
        inner.update({"attend.lengths": lengths})
        outer.replay()
        expected += (attend((given * 2).to(inner_device) @ weight, cache, lengths) * 2).cpu()
        assert torch.equal(total.cpu(), expected)
        assert torch.equal(z.cpu(), expected.relu() * 3)
    assert ": replay" in outer.to_dot()


def test_run_in_a_capture_is_copies_and_a_replay(device: str) -> None:
    x = torch.ones(3, device=device)
    inner = graphs.CapturedGraph()
    with graphs.capture(inner, inputs=x):
        inner.outputs = x.cumsum(0) * 2
    given = torch.ones(3, device=device)
    outer, y = split(lambda: inner.run(given + 1) + inner.run(given), None)
    assert x.tolist() == [1, 1, 1]
    given.fill_(5)
    outer.replay()
    assert y.tolist() == [22, 44, 66]
    with pytest.raises(CaptureError, match=r"run\(slots=...\) in a capture"):
        split(lambda: inner.run(given, slots={}), None)
    with pytest.raises(CaptureError, match="cannot be traced while another one is captured"):
        split(lambda: inner.trace("/dev/null"), None)
    with pytest.raises(CaptureError, match="that has the same memory pool"):
        split(inner.replay, None, pool=inner.pool())
    inner.reset()  # the outer graph keeps what it replays
    outer.replay()
    assert y.tolist() == [22, 44, 66]


def test_what_the_inner_graph_takes_as_given_is_checked() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    model = torch.nn.Linear(2, 2)
    x = torch.ones(2)
    inner, y = split(lambda: model(x), None)
    outer, z = split(lambda: (inner.replay(), y + 1)[1], None)
    kept = z.clone()
    model.bias = weight
    with pytest.raises(CaptureError, match="bias"):
        outer.replay()
    with pytest.raises(CaptureError, match="bias"):
        split(inner.replay, None)
    assert torch.equal(z, kept)


def test_neither_eager_calls_nor_replays_are_saved(tmp_path: Path) -> None:
    x, cache = torch.ones(2, 4), torch.ones(2, 5, 4)
    inner, _ = split(lambda: x + 1, None)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph, split_at=[attend], inputs=x):
        graph.outputs = attend(x, cache, [1, 1])
    outer = graphs.CapturedGraph()
    with graphs.capture(outer, inputs=x):
        inner.replay()
        outer.outputs = x * 2
    for one in (graph, outer):
        with pytest.raises(CaptureError, match="is called eagerly, by code of this process"):
            graphs.save(one, tmp_path / "g.bgraph")
    assert not list(tmp_path.iterdir())
