"""`torch.npu` beside what the sweep of device modules checks: submodules, forks, summaries."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import pytest
import torch


def test_amp_submodule_casts_and_scales_for_the_device() -> None:
    from torch.npu.amp import GradScaler, autocast

    x = torch.ones(2, 2, device="npu")
    with autocast(dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        with torch.npu.amp.autocast(enabled=False):
            assert (x @ x).dtype == torch.float32

    @autocast()
    def product() -> torch.Tensor:
        return x @ x

    assert product().dtype == torch.float16
    scaler = GradScaler(init_scale=8.0)
    assert isinstance(scaler, torch.amp.GradScaler)
    assert scaler.scale(torch.ones((), device="npu")).item() == 8


def test_custom_forward_of_the_amp_submodule_is_the_devices() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        @torch.npu.amp.custom_fwd(cast_inputs=torch.float32)
        def forward(ctx, x):
            return x * x

        @staticmethod
        @torch.npu.amp.custom_bwd
        def backward(ctx, grad):
            return grad

    with torch.npu.amp.autocast():
        assert Square.apply(torch.ones(2, device="npu").half()).dtype == torch.float32


@pytest.mark.parametrize("name", ["amp", "random", "memory", "graphs", "profiler"])
def test_submodule_is_imported_by_name_and_is_the_modules_own(name: str) -> None:
    submodule = importlib.import_module(f"torch.npu.{name}")
    assert submodule is getattr(torch.npu, name)
    for member in submodule.__all__:
        own = name in ("amp", "profiler")
        assert own or getattr(torch.npu, member, None) == getattr(submodule, member)


def test_the_profiler_submodule_profiles_host_and_device() -> None:
    from torch.npu.profiler import ProfilerActivity, profile

    source = torch.ones(1000).pin_memory()
    with profile() as both:
        source.to("npu", non_blocking=True).relu()
        torch.npu.synchronize()
    assert {"aten::relu", "Memcpy HtoD"} <= {event.name for event in both.events()}
    with profile(activities=[ProfilerActivity.CPU]) as host:
        source.to("npu", non_blocking=True)
        torch.npu.synchronize()
    assert "Memcpy HtoD" not in {event.name for event in host.events()}


def test_graphs_come_with_their_first_name(fresh_python: Callable[..., str]) -> None:
    code = """
import sys, torch
from bringup import devices
devices.load_driver("sim")
import torch.npu.graphs
assert "bringup.graphs" not in sys.modules
graph = torch.npu.graphs.NPUGraph()
from bringup import graphs
assert type(graph) is graphs.CapturedGraph is torch.npu.NPUGraph
names = torch.npu.graphs.__all__
assert all(getattr(torch.npu.graphs, n) is getattr(torch.npu, n) for n in names)
assert set(names) <= set(dir(torch.npu))
print(hasattr(torch.npu.graphs, "nothing"), hasattr(torch.npu, "nothing"))
"""
    assert fresh_python(code) == "False False"


def test_a_stream_of_other_code_is_one_of_torchs() -> None:
    made = torch.Stream("npu:1")  # stands for one that a library made: torch sees its handle only
    stream = torch.npu.ExternalStream(made.native_handle, device=1)
    assert isinstance(stream, torch.Stream)
    assert stream.device == torch.device("npu", 1)
    assert stream.native_handle == made.native_handle
    with torch.npu.stream(stream):
        assert torch.npu.current_stream(1) == made
        there = torch.arange(1000).pin_memory().to("npu:1", non_blocking=True)
    made.synchronize()
    assert stream.query()
    assert there.cpu().equal(torch.arange(1000))
    with pytest.raises(RuntimeError, match="default_stream"):
        torch.npu.ExternalStream(0)
    with pytest.raises(RuntimeError, match="no device 'npu:9'"):
        torch.npu.ExternalStream(made.native_handle, device=9)


def test_out_of_memory_is_caught_by_the_devices_name() -> None:
    assert torch.npu.OutOfMemoryError is torch.OutOfMemoryError
    with pytest.raises(torch.npu.OutOfMemoryError):
        torch.empty(1 << 50, dtype=torch.uint8, device="npu")


def test_peers_are_checked_and_none_reaches_another() -> None:
    assert torch.npu.can_device_access_peer(0, "npu:1") is False
    with pytest.raises(RuntimeError, match="no device 'npu:5'"):
        torch.npu.can_device_access_peer(0, 5)


def test_forked_child_is_told_how_to_start_a_process_and_seeding_there_is_harmless(
    fresh_python: Callable[..., str],
) -> None:
    code = """
import os, torch
from bringup import devices
devices.load_driver("sim")
pid = os.fork()
if pid == 0:
    said = ""
    try:
        torch.npu.init()
    except RuntimeError as error:
        said = str(error)
    torch.manual_seed(3)
    fine = "'spawn'" in said and not torch.npu._initialized and not torch.npu.is_initialized()
    os._exit(0 if fine else 1)
print(os.waitpid(pid, 0)[1], torch.npu._initialized)
"""
    assert fresh_python(code) == "0 True"


def test_legacy_type_names_are_those_of_the_device() -> None:
    x = torch.ones(2, device="npu")
    assert x.type() == "torch.npu.FloatTensor"
    assert x.type("torch.npu.HalfTensor").dtype == torch.float16
