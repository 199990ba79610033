"""Captures without a `with` block, and graphs written to a file."""

from __future__ import annotations

import gc
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.graphs.support import captured

from bringup import graphs
from bringup.errors import CaptureError


def test_capture_begin_and_end_are_the_block() -> None:
    graph, x = graphs.CapturedGraph(), torch.ones(3)
    graph.capture_begin()
    assert graphs.is_current_stream_capturing()
    y = x * 2
    x += 1
    graph.capture_end()
    assert not graphs.is_current_stream_capturing()
    assert x.tolist() == [1, 1, 1]  # as it was before
    graph.replay()
    assert (x.tolist(), y.tolist()) == ([2, 2, 2], [2, 2, 2])
    with pytest.raises(CaptureError, match="holds a capture already"):
        graph.capture_begin()
    graph.reset()
    graph.capture_begin(capture_error_mode="relaxed", inputs={"x": x})
    y = x * 3
    graph.capture_end()
    graph.outputs = y
    assert graph.run(x=torch.full((3,), 5.0)).tolist() == [15, 15, 15]


def test_what_an_unseen_write_changed_is_found_from_the_callers_variables_too() -> None:
    graph, x, seen = graphs.CapturedGraph(), torch.ones(3), torch.zeros(1)
    array = seen.numpy()
    graph.capture_begin()
    y = x * 2
    array[0] = 1
    with pytest.raises(CaptureError, match="seen"):
        graph.capture_end()
    assert seen.tolist() == [0]
    del y


def test_begin_and_end_in_another_order_are_refused() -> None:
    graph = graphs.CapturedGraph()
    with pytest.raises(CaptureError, match=r"capture_end: call capture_begin\(\) before"):
        graph.capture_end()
    graph.capture_begin()
    try:
        with pytest.raises(CaptureError, match=r"is being captured already: call capture_end\(\)"):
            graph.capture_begin()
        with pytest.raises(CaptureError, match="cannot start inside another one"):
            graphs.CapturedGraph().capture_begin()
    finally:
        graph.reset()
    assert not graphs.is_current_stream_capturing()
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        graph.capture_begin(colour="red")


def test_reset_ends_a_capture_that_was_begun_and_puts_everything_back() -> None:
    graph, x = graphs.CapturedGraph(), torch.ones(2)
    graph.capture_begin()
    x.mul_(7)
    graph.reset()
    assert x.tolist() == [1, 1]
    assert not graphs.is_current_stream_capturing()
    graph.capture_begin()
    y = x + 1
    graph.capture_end()
    graph.replay()
    assert y.tolist() == [2, 2]


def test_a_graph_is_written_as_dot_or_json(tmp_path: Path, affine: Any) -> None:
    graph, _ = captured(lambda: affine(torch.ones(3), 1, 2.0, False, [3, 4], [0.5]) * 2)
    graph.debug_dump(tmp_path / "graph.dot")
    assert (tmp_path / "graph.dot").read_text() == graph.to_dot()
    graph.debug_dump(str(tmp_path / "graph.json"))
    written = json.loads((tmp_path / "graph.json").read_text())
    assert written["memory_bytes"] == graph.memory_bytes
    assert [node["op"] for node in written["nodes"]] == [node.op for node in graph.nodes]
    of_affine = next(node for node in written["nodes"] if "affine" in node["op"])
    assert {name: slot["value"] for name, slot in of_affine["slots"].items()} == {
        name: slot.value for name, slot in graph.slots.items()
    }
    assert [access["writes"] for access in of_affine["accesses"]] == [False, True]
    with pytest.raises(CaptureError, match="debug_dump: nothing is captured"):
        graphs.CapturedGraph().debug_dump(tmp_path / "none.json")


def test_a_graph_that_is_lost_ends_its_capture() -> None:
    x = torch.ones(3)

    def fails() -> None:
        graph = graphs.CapturedGraph()
        graph.capture_begin()
        x.add_(1)
        raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        fails()
    gc.collect()
    assert not graphs.is_current_stream_capturing()
    assert x.tolist() == [1, 1, 1]
    graph, y = captured(lambda x: x * 2, x)
    graph.replay()
    assert y.tolist() == [2, 2, 2]


def test_a_graph_that_another_thread_loses_ends_its_capture_on_its_own() -> None:
    holder = [graphs.CapturedGraph()]
    holder[0].capture_begin()
    thread = threading.Thread(target=holder.clear)
    thread.start()
    thread.join()
    assert not graphs.is_current_stream_capturing()
    captured(lambda x: x * 2, torch.ones(3))


def test_what_programs_for_cuda_graphs_call_besides() -> None:
    graph, generator = graphs.CapturedGraph(keep_graph=True), torch.Generator()
    x = torch.zeros(3)
    graph.enable_debug_mode()
    graph.register_generator_state(generator)
    with pytest.raises(TypeError, match=r"a torch\.Generator is registered, got int"):
        graph.register_generator_state(3)
    with pytest.raises(CaptureError, match="nothing is captured"):
        graph.instantiate()
    with graphs.capture(graph):
        y = x + torch.rand(3, generator=generator)
    graph.instantiate()
    generator.manual_seed(4)
    graph.replay()
    assert torch.equal(y, torch.rand(3, generator=generator.manual_seed(4)))
