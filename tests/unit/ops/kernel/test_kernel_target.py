"""Where a kernel operator runs on torch's CUDA backend, and what it is built for; no GPU needed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.unit.ops.conftest import Define
from torch._subclasses.fake_tensor import FakeTensorMode

from bringup import jit, ops
from bringup.errors import DeviceError
from bringup.ops.kernel.kernel_target import architecture, runs_on_cuda, target_for

TEXT = '#include "bringup/cuda.h"\n'


@pytest.fixture
def three_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two models, one of them twice."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: [(9, 0), (8, 0), (9, 0)][i])


@pytest.mark.usefixtures("three_gpus")
def test_a_kernel_is_built_for_every_model_that_is_there() -> None:
    template = jit.Template(text=TEXT, name="scale.cu", abi="args")
    assert target_for("ns::scale", template, "cuda") == "cuda:sm_80+sm_90"
    assert architecture("cuda") == "sm_80+sm_90"


def test_without_a_gpu_a_kernel_is_built_for_the_targets_default() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert (
        target_for("ns::scale", jit.Template(text=TEXT, name="scale.cu", abi="args"), "cuda")
        == "cuda"
    )
    assert architecture("cuda") == ""


def test_host_code_and_device_code_do_not_run_on_cuda() -> None:
    for template in (
        jit.Template(text="int x;", name="scale.cpp", abi="args"),
        jit.Template(text=TEXT, name="scale.cu", abi="args", kind="device"),
    ):
        assert not runs_on_cuda(template)
        with pytest.raises(DeviceError, match=r"no driver for device 'cuda'; .* from a \.cu file"):
            target_for("ns::scale", template, "cuda")


def test_a_library_runs_on_cuda_only_if_it_was_built_with_cuda(tmp_path: Path) -> None:
    library = tmp_path / "libscale.so"
    template = jit.Template(library, entry="scale", abi="function", params="ptr(out)")
    library.write_bytes(b"\x7fELF host code")
    assert not runs_on_cuda(template)
    library.write_bytes(b"\x7fELF .nv_fatbin")
    assert runs_on_cuda(template)


def test_only_an_operator_that_can_run_on_cuda_is_registered_there(define: Define) -> None:
    """Passes ask the dispatcher whether a kernel runs on the device of their graph."""
    signature = "(Tensor x) -> Tensor"
    host = define(f"host{signature}", outputs=ops.empty_like("x"))
    cuda = jit.Source(text=TEXT, name="cuda.cu")
    gpu = define(f"gpu{signature}", source=cuda, outputs=ops.empty_like("x"))
    for operator, expected in ((host, False), (gpu, True)):
        assert operator.overload.has_kernel_for_dispatch_key("CUDA") is expected


def test_an_operator_has_fake_results_on_cuda(define: Define) -> None:
    scale = define("scale(Tensor x, float factor) -> Tensor", outputs=ops.empty_like("x"))
    with FakeTensorMode():
        result = scale(torch.empty(3, device="cuda"), 2.0)
    assert (result.device.type, result.shape) == ("cuda", (3,))
