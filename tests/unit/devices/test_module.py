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


@pytest.mark.parametrize("name", ["amp", "random", "memory"])
def test_submodule_is_imported_by_name_and_is_the_modules_own(name: str) -> None:
    submodule = importlib.import_module(f"torch.npu.{name}")
    assert submodule is getattr(torch.npu, name)
    for member in submodule.__all__:
        assert getattr(torch.npu, member, None) == getattr(submodule, member) or name == "amp"


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
