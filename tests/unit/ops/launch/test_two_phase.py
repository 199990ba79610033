"""`TwoPhaseLauncher`: a plan that says its workspace, then the run."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch

from bringup import devices, jit, ops
from bringup.errors import ContractError, DeviceError, KernelError

# A library in aclnn's form: y = x + 1 through the workspace, for tensors of any strides.
LIBRARY = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#define EXPORT __attribute__((visibility("default")))
typedef struct { int64_t ndim, sizes[8], strides[8], offset, held; int32_t type, format; float* data; } aclTensor;
typedef struct { const aclTensor *x, *y; int64_t n; } aclOpExecutor;

EXPORT int32_t alive = 0;

EXPORT aclTensor* aclCreateTensor(const int64_t* sizes, uint64_t ndim, int32_t type,
                                  const int64_t* strides, int64_t offset, int32_t format,
                                  const int64_t* storage, uint64_t storage_ndim, void* data) {
  if (ndim > 8 || storage_ndim != 1) return 0;
  aclTensor* tensor = malloc(sizeof *tensor);
  tensor->ndim = (int64_t)ndim;
  memcpy(tensor->sizes, sizes, ndim * sizeof *sizes);
  memcpy(tensor->strides, strides, ndim * sizeof *strides);
  tensor->offset = offset; tensor->held = storage[0];
  tensor->type = type; tensor->format = format; tensor->data = data;
  ++alive;
  return tensor;
}
EXPORT int32_t aclDestroyTensor(const aclTensor* tensor) { free((void*)tensor); --alive; return 0; }

static float* element(const aclTensor* tensor, int64_t index) {
  int64_t place = tensor->offset;
  for (int64_t d = tensor->ndim - 1; d >= 0; --d) {
    place += index % tensor->sizes[d] * tensor->strides[d];
    index /= tensor->sizes[d];
  }
  return place < tensor->held ? tensor->data + place : 0;
}
EXPORT int32_t aclnnIncrementGetWorkspaceSize(const aclTensor* x, const aclTensor* y, double limit,
                                              uint64_t* size, aclOpExecutor** executor) {
  if (x->type != 0 || x->format != 2) return 161001;
  int64_t n = 1;
  for (int64_t d = 0; d < x->ndim; ++d) n *= x->sizes[d];
  if ((double)n > limit) return 161002;
  *executor = malloc(sizeof **executor);
  (*executor)->x = x; (*executor)->y = y; (*executor)->n = n;
  *size = (uint64_t)n * sizeof(float);
  return 0;
}
EXPORT int32_t aclnnIncrement(void* workspace, uint64_t size, aclOpExecutor* executor, void* stream) {
  (void)stream;
  float* sum = workspace;
  const aclOpExecutor plan = *executor;
  free(executor);
  if (size != (uint64_t)plan.n * sizeof(float)) return 1;
  for (int64_t i = 0; i < plan.n; ++i) sum[i] = *element(plan.x, i) + 1;
  for (int64_t i = 0; i < plan.n; ++i) *element(plan.y, i) = sum[i];
  return 0;
}
EXPORT int32_t aclnnBrokenGetWorkspaceSize(uint64_t* size, void** executor) {
  *size = 0; *executor = 0;
  return 0;
}
EXPORT int32_t aclnnBroken(void* workspace, uint64_t size, void* executor, void* stream) {
  (void)workspace; (void)size; (void)executor; (void)stream;
  return 361001;
}
EXPORT int32_t aclnnHalfGetWorkspaceSize(uint64_t* size, void** executor) {
  *size = 0; *executor = 0;
  return 0;
}
"""  # noqa: E501

WITHOUT_DESCRIPTORS = r"""
#include <stdint.h>
#define EXPORT __attribute__((visibility("default")))
EXPORT int32_t aclnnZeroGetWorkspaceSize(float* x, uint64_t* size, void** executor) {
  *size = 0; *executor = x;
  return 0;
}
EXPORT int32_t aclnnZero(void* workspace, uint64_t size, void* executor, void* stream) {
  (void)workspace; (void)size; (void)stream;
  *(float*)executor = 0;
  return 0;
}
"""


def build(text: str, entry: str) -> Path:
    return jit.compile(jit.Source(text=text, name="library.c", entry=entry)).path


@pytest.fixture(scope="module")
def library(kernel_cache: Path) -> Path:
    return build(LIBRARY, "aclnnIncrement")


@pytest.fixture
def launcher(library: Path) -> ops.TwoPhaseLauncher:
    return ops.TwoPhaseLauncher(library)


@pytest.fixture(scope="module", autouse=True)
def npu() -> devices.DriverInfo:
    return devices.load_driver("sim")


DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])


def descriptors_alive(library: Path) -> int:
    return ctypes.c_int32.in_dll(ctypes.CDLL(str(library)), "alive").value


@DEVICES
@pytest.mark.parametrize("name", ["Increment", "aclnnIncrement"])
def test_both_phases_run_with_the_workspace(
    launcher: ops.TwoPhaseLauncher, library: Path, device: str, name: str
) -> None:
    x, y = torch.arange(6.0, device=device), torch.zeros(6, device=device)
    launcher.launch(name, args=[x, y, 100.0])
    assert y.tolist() == [1, 2, 3, 4, 5, 6]
    assert descriptors_alive(library) == 0


@DEVICES
def test_descriptors_carry_strides_and_offset(launcher: ops.TwoPhaseLauncher, device: str) -> None:
    x = torch.arange(12.0, device=device).view(3, 4)
    y = torch.zeros(4, 3, device=device)
    launcher.launch("Increment", args=[x.t()[1:], y[1:], 100.0])
    expected = torch.zeros(4, 3)
    expected[1:] = x.cpu().t()[1:] + 1
    assert torch.equal(y.cpu(), expected)


def test_runs_behind_what_the_stream_still_has_to_do(launcher: ops.TwoPhaseLauncher) -> None:
    x = torch.zeros(1 << 16, device="npu")
    for _ in range(10):
        x += 1
        launcher.launch("Increment", args=[x, x, 1e9])
    assert torch.equal(x.cpu(), torch.full((1 << 16,), 20.0))


@pytest.mark.usefixtures("settled")
def test_workspace_is_given_back(launcher: ops.TwoPhaseLauncher) -> None:
    x = torch.zeros(1 << 16, device="npu")
    torch.npu.synchronize()
    before = torch.npu.memory_allocated()
    for _ in range(5):
        launcher.launch("Increment", args=[x, x, 1e9])
    assert torch.npu.memory_allocated() == before


def test_other_stream_is_taken(launcher: ops.TwoPhaseLauncher) -> None:
    stream = torch.Stream("npu")
    x = torch.zeros(8, device="npu")
    torch.npu.synchronize()
    launcher.launch("Increment", args=[x, x, 100.0], stream=stream)
    stream.synchronize()
    assert x.tolist() == [1] * 8


def test_failure_of_the_plan_is_told_and_leaves_no_descriptor(
    launcher: ops.TwoPhaseLauncher, library: Path
) -> None:
    x = torch.zeros(4)
    with pytest.raises(KernelError, match=r"aclnnIncrementGetWorkspaceSize of .* code 161002"):
        launcher.launch("Increment", args=[x, x, 3.0])
    assert descriptors_alive(library) == 0


def test_failure_of_the_run_is_told(launcher: ops.TwoPhaseLauncher) -> None:
    with pytest.raises(KernelError, match=r"aclnnBroken of .*: launch failed with code 361001"):
        launcher.launch("Broken")


def test_missing_function_is_named(launcher: ops.TwoPhaseLauncher) -> None:
    with pytest.raises(KernelError, match="Symbol 'aclnnNoGetWorkspaceSize' not found in"):
        launcher.launch("No")
    with pytest.raises(KernelError, match="Symbol 'aclnnHalf' not found in"):
        launcher.launch("Half")


@pytest.mark.parametrize("more", ["", "EXPORT void* aclCreateTensor(void) { return 0; }"])
def test_library_without_descriptors_takes_addresses(kernel_cache: Path, more: str) -> None:
    launcher = ops.TwoPhaseLauncher(build(WITHOUT_DESCRIPTORS + more, "aclnnZero"))
    x = torch.ones(2)
    with pytest.raises(KernelError, match=r"no aclCreateTensor.*pass .*ops.tensor_ptr\(x\)"):
        launcher.launch("Zero", args=[x])
    launcher.launch("Zero", args=[ops.tensor_ptr(x)])
    assert x.tolist() == [0, 1]


def test_tensor_that_cannot_be_described_is_told(launcher: ops.TwoPhaseLauncher) -> None:
    deep = torch.zeros([1] * 9)
    with pytest.raises(KernelError, match=r"aclCreateTensor failed for a tensor of shape \[1, 1"):
        launcher.launch("Increment", args=[deep, deep, 1.0])
    odd = torch.zeros(1, dtype=torch.float8_e4m3fn)
    with pytest.raises(ContractError, match="float8_e4m3fn has no aclDataType"):
        launcher.launch("Increment", args=[odd, odd, 1.0])


def test_native_handle_cannot_carry_a_workspace(launcher: ops.TwoPhaseLauncher) -> None:
    stream = torch.Stream("npu")
    x = torch.zeros(4, device="npu")
    with pytest.raises(ContractError, match=r"workspace of 16 bytes.*give the torch.Stream"):
        launcher.launch("Increment", args=[x, x, 9.0], stream=stream.native_handle)
    empty = torch.zeros(0, device="npu")  # takes no workspace
    launcher.launch("Increment", args=[empty, empty, 9.0], stream=stream.native_handle)


def test_tensors_on_two_devices_are_refused(launcher: ops.TwoPhaseLauncher) -> None:
    args = [torch.zeros(1), torch.zeros(1, device="npu"), 1.0]
    with pytest.raises(ContractError, match="argument 0 on cpu, argument 1 on npu:0"):
        launcher.launch("Increment", args=args)


def test_stream_of_another_device_is_refused(launcher: ops.TwoPhaseLauncher) -> None:
    x = torch.zeros(1)
    with pytest.raises(ContractError, match="the tensors are on cpu, the stream is of npu:0"):
        launcher.launch("Increment", args=[x, x, 1.0], stream=torch.Stream("npu"))


def test_host_code_is_kept_from_memory_that_the_host_cannot_see(
    launcher: ops.TwoPhaseLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dataclasses

    hidden = dataclasses.replace(devices.load_driver("sim"), host_visible=False)
    monkeypatch.setattr(devices, "loaded", lambda: hidden)
    x: Any = torch.zeros(1, device="npu")
    with pytest.raises(DeviceError, match=r"cannot see the memory of device 'npu:0'.*ascendc_load"):
        launcher.launch("Increment", args=[x, x, 1.0])
