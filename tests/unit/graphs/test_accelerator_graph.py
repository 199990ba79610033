"""torch.accelerator.Graph on the simulated NPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.forked_python import run_forked

from bringup import devices, graphs
from bringup.errors import CaptureError


@pytest.fixture(autouse=True)
def _npu() -> None:
    devices.load_driver("sim")


def test_capture_and_replay() -> None:
    x, stream = torch.zeros(4, device="npu"), torch.Stream(device="npu")
    graph = torch.accelerator.Graph()
    with stream, graph:
        x += 1
        y = x * 2
    assert x.cpu().tolist() == [0] * 4  # a capture puts back what it changed
    for _ in range(3):
        graph.replay()
    torch.accelerator.synchronize()
    assert x.cpu().tolist() == [3] * 4
    assert y.cpu().tolist() == [6] * 4


@pytest.mark.parametrize("mode", ["default", "global", "thread_local", "relaxed"])
def test_begin_end_reset_and_again(mode: str, tmp_path: Path) -> None:
    x = torch.ones(2, device="npu")
    graph = torch.accelerator.Graph(keep_graph=True, capture_error_mode=mode)
    graph.enable_debug_mode()
    for factor in (2, 5):
        graph.capture_begin()
        assert graphs.is_current_stream_capturing()
        y = x * factor
        graph.capture_end()
        graph.instantiate()
        graph.replay()
        assert y.cpu().tolist() == [factor] * 2
        graph.debug_dump(str(tmp_path / "graph.dot"))
        assert "aten::mul" in (tmp_path / "graph.dot").read_text()
        graph.reset()
    with pytest.raises(CaptureError, match="nothing is captured"):
        graph.replay()
    with pytest.raises(CaptureError, match="nothing is captured"):
        graph.instantiate()


def test_pools_are_names_that_others_take() -> None:
    one = torch.accelerator.Graph()
    two = torch.accelerator.Graph(pool=one.pool())
    assert one.pool() != two.pool()
    x = torch.ones(2, device="npu")
    with two:
        y = x + 1
    two.replay()
    assert y.cpu().tolist() == [2, 2]


def test_block_that_raises_captures_nothing() -> None:
    x = torch.zeros(2, device="npu")
    graph = torch.accelerator.Graph()

    def run() -> None:
        with graph:
            x.add_(1 / (x.dim() - 1))

    with pytest.raises(ZeroDivisionError):
        run()
    assert not graphs.is_current_stream_capturing()
    assert x.cpu().tolist() == [0, 0]
    with pytest.raises(CaptureError, match="nothing is captured"):
        graph.replay()
    with graph:
        y = x + 1
    graph.replay()
    assert y.cpu().tolist() == [1, 1]


def test_what_cannot_be_captured_is_refused_with_our_error() -> None:
    x = torch.zeros(2, device="npu")
    graph = torch.accelerator.Graph()
    with pytest.raises(CaptureError, match="item"), graph:
        x.sum().item()
    with pytest.raises(CaptureError, match="call capture_begin"):
        graph.capture_end()


def test_it_works_where_nobody_imported_graphs_and_the_process_ends() -> None:
    script = """
import torch
from bringup import devices
devices.load_driver("sim")
x = torch.ones(2, device="npu")
graph = torch.accelerator.Graph()
with torch.no_grad(), graph:
    y = x + 1
graph.replay()
print(y.cpu().tolist())
"""
    done = run_forked(script)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[2.0, 2.0]", "")
