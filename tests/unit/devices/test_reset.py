"""A device is reset: what was pending and what had failed is gone, everything else goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bringup import devices, graphs, jit, ops
from bringup.errors import DeviceError

failing = ops.kernel_op(
    "reset::refuses(Tensor x) -> Tensor",
    source=jit.Source(
        name="refuses.cpp",
        text="""#include <bringup/kernel.h>
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  return ctx->set_error(ctx, "refused"), 7;
}""",
    ),
    outputs=ops.empty_like("x"),
    checks=ops.dtype("x", torch.float32),
)


def test_a_failure_that_nobody_was_told_of_is_forgotten() -> None:
    failing(torch.ones(4, device="npu"))
    torch.npu.reset_device()
    torch.npu.synchronize()
    failing(torch.ones(4, device="npu"))
    with pytest.raises(Exception, match="refused"):
        torch.npu.synchronize()


def test_work_in_every_way_goes_on_after_a_reset() -> None:
    kept = torch.ones(1000, device="npu")
    state = torch.npu.get_rng_state()
    before = torch.rand(5, device="npu").tolist()
    stream, event = torch.Stream("npu"), torch.Event("npu")
    event.record(stream)
    kept.record_stream(stream)
    torch.npu.reset_device("npu:0")
    assert event.query()
    assert stream.query()
    torch.npu.set_rng_state(state)
    assert torch.rand(5, device="npu").tolist() == before
    kept.fill_(2)  # what it held is undefined, that it is there is not
    stream.wait_stream(torch.npu.current_stream())
    with stream:
        total = kept.sum()
    stream.synchronize()
    assert total.item() == 2000
    del kept
    torch.npu.empty_cache()
    assert torch.ones(1000, device="npu").sum().item() == 1000


def test_a_captured_graph_is_replayed_after_a_reset() -> None:
    x = torch.ones(8, device="npu")
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        y = x * 2 + 1
    graph.replay()
    torch.npu.reset_device()
    x.fill_(4)
    graph.replay()
    assert y.tolist() == [9.0] * 8


def test_a_simulated_loss_is_over_when_the_device_is_reset() -> None:
    x = torch.ones(4, device="npu")
    other = torch.ones(4, device="npu:1")
    torch.npu.synchronize()
    with devices.sim.faults(lost_after=0):
        for attempt in range(2):
            with pytest.raises(RuntimeError, match=r"device 0 is lost.*reset_device\(\)"):
                x.clone()
            if attempt:
                torch.npu.reset_device(0)
        x.fill_(3)
        assert (x * 2).tolist() == [6.0] * 4
        with pytest.raises(RuntimeError, match=r"device 1 is lost"):
            other.clone()  # each device is reset for itself
        torch.npu.reset_device(1)
        other.fill_(2)
        assert x.to("npu:1").add(other).tolist() == [5.0] * 4


def test_training_goes_on_with_the_same_numbers_after_a_loss() -> None:
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Dropout(0.5)).to("npu")
    optimizer = torch.optim.AdamW(model.parameters())
    start = {name: value.cpu() for name, value in model.state_dict().items()}

    def train() -> list[float]:
        """From the start: what memory holds is undefined after a reset."""
        torch.manual_seed(3)
        model.load_state_dict(start)
        optimizer.state.clear()
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 6, device="npu")).square().sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    expected = train()
    with devices.sim.faults() as seen:
        train()
    with devices.sim.faults(lost_after=seen.calls // 2):
        with pytest.raises(RuntimeError, match="lost"):
            train()
        for device in range(torch.npu.device_count()):
            torch.npu.reset_device(device)
        assert train() == expected


def test_a_reset_within_a_capture_is_refused() -> None:
    x = torch.ones(8, device="npu")

    def capture() -> None:
        with graphs.capture(graphs.CapturedGraph()):
            x.mul(2)
            torch.npu.reset_device()

    with pytest.raises(Exception, match=r"reset_device\(\)"):
        capture()
    assert (x * 2).tolist() == [2.0] * 8


def test_there_is_no_such_device() -> None:
    with pytest.raises(DeviceError, match="npu:7"):
        torch.npu.reset_device(7)


LOST = """
import sys
import torch
from bringup import devices
devices.load_driver(sys.argv[1])
x = torch.empty(1000, device="minimal")
for attempt in range(2):
    try:
        x.copy_(torch.ones(1000))
        print(x.sum().item())
    except RuntimeError as error:
        print(str(error).splitlines()[0])
        try:
            torch.minimal.reset_device()
        except Exception as refused:
            print(type(refused).__name__, refused)
"""


def test_a_lost_device_says_how_it_comes_back(
    build_driver: Callable[..., Path], fresh_python: Callable[..., str]
) -> None:
    first, last = fresh_python(
        LOST, str(build_driver("LOSES_DEVICE", "HAS_RESET")), BRINGUP_DRIVER_PROBE="0"
    ).splitlines()
    assert "device lost (status 5)" in first
    assert "reset_device() of the device's module makes it usable again" in first
    assert last == "1000.0"


def test_a_driver_that_cannot_reset_says_so(
    build_driver: Callable[..., Path], fresh_python: Callable[..., str]
) -> None:
    said = fresh_python(
        LOST, str(build_driver("LOSES_DEVICE")), BRINGUP_DRIVER_PROBE="0"
    ).splitlines()
    assert "reset_device" not in said[0]
    assert said[1].startswith("DeviceError device 'minimal:0' cannot be reset: its driver has no")
