"""What a graph tells of itself: lines of the user's code, a timed replay, its memory."""

from __future__ import annotations

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tests.unit.graphs.support import captured
from torch import Tensor, nn

from bringup import devices, graphs, jit, ops
from bringup.errors import CaptureError

SCALE = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const bringup::View<float, 1> x(args[0]), out(args[2]);
  const int64_t n = *static_cast<int64_t*>(args[1]);
  if (n == 99) { ctx->set_error(ctx, "99 is too much"); return 1; }
  for (int64_t i = 0; i < x.size(0); ++i) out(i) = x(i) * n;
  return 0;
}
"""


@pytest.fixture(scope="module", params=["host", "device"])
def scale(request: pytest.FixtureRequest, kernel_cache: object) -> Any:
    """(device, `x * n`), and on the device as a kernel of its own."""
    devices.load_driver("sim")
    operator = ops.kernel_op(
        f"graphs_trace::scale_{request.param}(Tensor x, int n) -> Tensor",
        source=jit.Source(text=SCALE, name="scale.cpp"),
        outputs=ops.empty_like("x"),
        kind=request.param,
    )
    yield "cpu" if request.param == "host" else "npu", operator
    operator.undefine()


class Model(nn.Module):
    def __init__(self, scale: Any) -> None:
        super().__init__()
        self.first, self.scale = nn.Linear(3, 3), scale

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).relu()
        with graphs.scope("tail.end"):
            return self.scale(y.reshape(-1), 3) + torch.tensor(1.0)


def events_of(graph: graphs.CapturedGraph, path: Path) -> list[dict[str, Any]]:
    graph.trace(path / "trace.json")
    return list(json.loads((path / "trace.json").read_text())["traceEvents"])


def test_a_traced_replay_is_a_replay_and_says_when_nodes_ran(scale: Any, tmp_path: Path) -> None:
    device, operator = scale
    model, x = Model(operator).to(device), torch.ones(2, 3, device=device)
    graph, y = captured(model, x)
    (name,) = (name for name in graph.slots if name.endswith(".n"))
    graph.update({name: 5})  # belongs to the next replay: this one
    events = events_of(graph, tmp_path)
    assert torch.equal(y, model.first(x).relu().reshape(-1) * 5 + 1)
    x.fill_(2)
    graph.replay()
    assert torch.equal(y, model.first(x).relu().reshape(-1) * 5 + 1)
    graph.update({name: 7})
    events_of(graph, tmp_path)
    assert torch.equal(y, model.first(x).relu().reshape(-1) * 7 + 1)

    nodes = [event for event in events if event["cat"] != "scope"]
    assert [event["name"] for event in nodes] == [node.op for node in graph.nodes]
    assert [event["args"]["node"] for event in nodes] == list(range(len(nodes)))
    for before, after in itertools.pairwise(nodes):
        assert before["ts"] + before["dur"] <= after["ts"]
    (kernel,) = (event for event in nodes if event["cat"] == "kernel")
    assert kernel["args"][name] == 5
    assert kernel["args"]["line"].startswith(f"{__file__}:")
    assert kernel["dur"] > 0
    scopes = {event["name"]: event for event in events if event["cat"] == "scope"}
    assert set(scopes) == {"first", "tail", "tail.end"}
    inner, outer = scopes["tail.end"], scopes["tail"]
    assert outer["ts"] <= inner["ts"] <= kernel["ts"]
    end = kernel["ts"] + kernel["dur"]
    assert end <= inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]


def test_a_traced_replay_that_fails_names_the_node_and_leaves_the_graph(
    scale: Any, tmp_path: Path
) -> None:
    device, operator = scale
    x = torch.ones(3, device=device)
    graph, y = captured(lambda: operator(x + 1, 2))
    (name,) = (name for name in graph.slots if name.endswith(".n"))
    graph.update({name: 99})
    with pytest.raises(RuntimeError, match="99 is too much"):
        graph.trace(tmp_path / "trace.json")
    assert not (tmp_path / "trace.json").exists()
    graph.update({name: 3})
    events_of(graph, tmp_path)
    assert y.tolist() == [6] * 3


def test_a_trace_needs_a_capture_and_nobody_else(scale: Any, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"CapturedGraph\.trace: nothing is captured"):
        graphs.CapturedGraph().trace(tmp_path / "trace.json")
    device, operator = scale
    x, graph = torch.ones(3, device=device), graphs.CapturedGraph()

    def call_again(_: Tensor) -> None:
        if tracing:
            with pytest.raises(CaptureError, match="two threads replay this graph at once"):
                ThreadPoolExecutor(1).submit(graph.replay).result()

    tracing = False
    with graphs.capture(graph):
        operator(x, 2)
        graphs.host_function(call_again, x)
    tracing = True
    with pytest.raises(CaptureError, match="two threads replay this graph at once"):
        graph.trace(tmp_path / "trace.json")


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_errors_and_nodes_have_the_users_line(device: str) -> None:
    index = torch.tensor([1, 2], device=device)
    layer = nn.Embedding(4, 3).to(device)

    def lookup() -> Tensor:
        return layer(index) + 1

    graph, _ = captured(lookup)
    line = lookup.__code__.co_firstlineno + 1
    assert [node.line for node in graph.nodes] == [f"{__file__}:{line} in lookup"] * 2
    index.fill_(7)
    words = f"aten::embedding, called at {__file__}:{line} in lookup"
    with pytest.raises((IndexError, RuntimeError), match=words):
        _replayed(graph)


def _replayed(graph: graphs.CapturedGraph) -> None:
    graph.replay()
    torch.accelerator.synchronize()


def test_memory_is_told_by_kind() -> None:
    x, weight = torch.ones(1000, 10), torch.ones(10, 500)

    def run() -> Tensor:
        hidden = (x @ weight).relu().relu()
        return hidden[0].sum() + torch.tensor([1.0, 2.0])

    graph, result = captured(run)
    memory = graph.memory
    assert memory.inputs == x.nbytes + weight.nbytes
    assert memory.constants == 8
    assert result.nbytes <= memory.results < 1000
    assert 2 * 1000 * 500 * 4 <= memory.intermediates < 2.1 * 1000 * 500 * 4
    assert memory.results + memory.intermediates == graph.memory_bytes
    with graphs.graph_handler_scope("aten::mm", Matmul):
        graph, _ = captured(run)
    other = torch.zeros(1000, 10)
    graph.update({"mm.self": other})
    assert graph.memory.inputs == memory.inputs  # the captured one is gone


class Matmul(graphs.GraphOpHandler):
    UPDATE_SPECS: ClassVar = {"aten::mm": [("arg", 0, "self")]}
