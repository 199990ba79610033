"""Kernels on the device: launched in stream order, failures raised where somebody waits."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests.unit.devices.gate import Gate

from bringup import _native, devices, jit, ops
from bringup.errors import KernelError

SCALE = """
#include "bringup/kernel.h"

BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const DLTensor* x = static_cast<DLTensor*>(args[0]);
  const double factor = *static_cast<double*>(args[1]);
  float* out = static_cast<float*>(static_cast<DLTensor*>(args[2])->data);
  if (factor < 0) {
    ctx->set_error(ctx, "the factor is negative");
    return 3;
  }
  int64_t n = 1;
  for (int32_t d = 0; d < x->ndim; ++d) n *= x->shape[d];
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<const float*>(x->data)[i] * factor;
  return 0;
}
"""

Scale = Callable[[torch.Tensor, float], torch.Tensor]


@pytest.fixture(scope="module")
def scale() -> Scale:
    return ops.kernel_op(
        "devices_launch::scale(Tensor x, float factor) -> Tensor",
        source=jit.Source(text=SCALE, name="scale.cpp"),
        outputs=ops.empty_like("x"),
    )


@pytest.fixture
def side_stream() -> Iterator[torch.Stream]:
    with torch.npu.stream(torch.npu.Stream()) as stream:
        yield stream


def test_kernel_computes_on_the_device(scale: Scale, npu: devices.DriverInfo) -> None:
    x = torch.arange(6.0, device="npu").reshape(2, 3)
    assert torch.equal(scale(x, 2.0).cpu(), x.cpu() * 2)
    assert torch.equal(scale(x.t(), 2.0).cpu(), x.cpu().t() * 2)
    assert scale(x[:0], 2.0).shape == (0, 3)


def test_a_kernel_is_loaded_from_memory(scale: Scale) -> None:
    x = torch.ones(3, device="npu")
    assert scale(x, 2.0).tolist() == [2, 2, 2]
    assert "memfd:bringup-kernel" in Path("/proc/self/maps").read_text()


def test_a_kernel_that_needs_a_library_beside_it_is_loaded_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "three.c").write_text("float three(void) { return 3; }")
    (tmp_path / "kernel.c").write_text(
        '#include "bringup/kernel.h"\nfloat three(void);\n'
        "int32_t run(void** args, int32_t n, const bringup_ctx* ctx) {\n"
        "  ((float*)((DLTensor*)args[1])->data)[0] = three();\n  return 0;\n}\n"
    )
    common = ["cc", "-shared", "-fPIC", f"-I{_native.include_dir()}"]
    beside = ["-o", "libthree.so", "three.c"]
    kernel = ["-o", "libkernel.so", "kernel.c", "-L.", "-lthree", "-Wl,-rpath,$ORIGIN"]
    for rest in (beside, kernel):
        subprocess.run([*common, *rest], check=True, cwd=tmp_path)
    op = ops.kernel_op(
        "devices_launch::three(Tensor x) -> Tensor",
        source=tmp_path / "libkernel.so",
        outputs=ops.empty_like("x"),
    )
    assert op(torch.ones(1, device="npu")).tolist() == [3]


def test_kernel_runs_after_the_work_before_it_in_its_stream(
    scale: Scale,
    side_stream: torch.Stream,
    held_write: Callable[[torch.Tensor, int], None],
    gate: Gate,
) -> None:
    source = torch.ones(1 << 16, device="npu")
    target = torch.zeros(1 << 16, device="npu")
    held_write(source, gate.address)
    for _ in range(4):
        target.copy_(source)
    result = scale(target, 3.0)
    assert not side_stream.query()
    del target
    gate.release()
    assert result.sum().item() == 3 * (1 << 16)


def test_failure_is_raised_by_synchronize_with_operator_device_and_stream(scale: Scale) -> None:
    scale(torch.ones(2, device="npu"), -1.0)
    with pytest.raises(KernelError) as raised:
        torch.npu.synchronize()
    assert str(raised.value) == (
        "operator 'devices_launch::scale' failed in stream 0 of device 0:"
        " the kernel returned 3: the factor is negative [driver's detail: code 3, block 0 of 1]"
    )
    torch.npu.synchronize()  # told once


@pytest.mark.parametrize(
    "wait",
    [
        lambda y: y.cpu(),
        lambda y: y + 1,
        lambda y: y.sum().item(),
        lambda y: torch.npu.current_stream().synchronize(),
        lambda y: torch.accelerator.synchronize(),
    ],
    ids=["cpu", "fallback", "item", "stream", "accelerator"],
)
def test_failure_is_raised_by_whatever_waits_first(
    scale: Scale, wait: Callable[[torch.Tensor], object]
) -> None:
    y = scale(torch.ones(2, device="npu"), -1.0)
    with pytest.raises(RuntimeError, match=r"operator 'devices_launch::scale' failed in stream 0"):
        wait(y)
    assert (torch.ones(2, device="npu") + 1).sum().item() == 4


def test_failure_in_one_stream_does_not_disturb_another(
    scale: Scale, side_stream: torch.Stream
) -> None:
    scale(torch.ones(2, device="npu"), -1.0)
    with torch.npu.stream(torch.npu.default_stream()):
        assert scale(torch.ones(2, device="npu"), 2.0).sum().item() == 4
    with pytest.raises(RuntimeError, match=r"failed in stream \d+ of device 0"):
        side_stream.synchronize()


def test_blocking_launches_raise_where_they_were_called(
    fresh_python: Callable[..., str],
) -> None:
    code = f"""
import torch
from bringup import devices, jit, ops
devices.load_driver("sim")
scale = ops.kernel_op("demo::scale(Tensor x, float factor) -> Tensor",
                      source=jit.Source(text={SCALE!r}, name="scale.cpp"),
                      outputs=ops.empty_like("x"))
x = torch.ones(2, device="npu")
print(scale(x, 2.0).tolist())
try:
    scale(x, -1.0)
except RuntimeError as error:
    print(error)
"""
    for isolated in ("0", "1"):
        said = fresh_python(code, BRINGUP_LAUNCH_BLOCKING="1", BRINGUP_SIM_ISOLATED=isolated)
        assert said == (
            "[2.0, 2.0]\noperator 'demo::scale' failed in stream 0 of device 0:"
            " the kernel returned 3: the factor is negative"
            " [driver's detail: code 3, block 0 of 1]"
        )


def test_unreported_failure_is_warned_about_at_the_end(fresh_python: Callable[..., str]) -> None:
    code = f"""
import sys, torch, warnings
from bringup import devices, jit, ops
devices.load_driver("sim")
warnings.showwarning = lambda message, *_: print(message)
scale = ops.kernel_op("demo::scale(Tensor x, float factor) -> Tensor",
                      source=jit.Source(text={SCALE!r}, name="scale.cpp"),
                      outputs=ops.empty_like("x"))
scale(torch.ones(2, device="npu"), -1.0)
"""
    assert "work on device 'npu:0' failed and its result was not read" in fresh_python(code)


def test_failing_host_entry_raises_kernel_error_at_the_call(
    build_driver: Callable[..., Path], fresh_python: Callable[..., str]
) -> None:
    code = f"""
import sys, torch
from bringup import devices, jit, ops
from bringup.errors import KernelError
devices.load_driver(sys.argv[1])  # it launches nothing: a kernel is a host entry
scale = ops.kernel_op("demo::scale(Tensor x, float factor) -> Tensor",
                      source=jit.Source(text={SCALE!r}, name="scale.cpp"),
                      outputs=ops.empty_like("x"))
throw = ops.kernel_op(
    "demo::throw(Tensor x) -> Tensor", outputs=ops.empty_like("x"),
    source=jit.Source(text='extern "C" int run(void**, int, const void*) {{ throw 1; }}',
                      name="throw.cpp"))
x = torch.ones(2, device="minimal")
for call in (scale, scale.overload):
    try:
        call(x, -1.0)
    except KernelError as error:
        print(error)
try:
    throw(x)
except KernelError as error:
    print(error)
"""
    said = fresh_python(code, str(build_driver())).splitlines()
    failed = "demo::scale: the kernel failed with status 3: the factor is negative"
    assert said[:2] == [failed, failed]
    assert said[2].startswith("demo::throw: the kernel threw: something that is no std::exception")


WORKSPACE = """
#include "bringup/params.h"
struct P { bringup_params head; int64_t* out; int64_t bytes; };
extern "C" uint64_t workspace_size(const P* p) { return p->bytes; }
extern "C" void run(uint32_t, void*, const P* p) {
  p->out[0] = reinterpret_cast<int64_t>(p->head.workspace);
}
"""


def test_a_host_entry_works_in_device_memory_that_it_gives_back(
    build_driver: Callable[..., Path], fresh_python: Callable[..., str]
) -> None:
    """Stream-ordered, reused, no leak over 10,000 calls."""
    code = f"""
import sys, torch
from bringup import devices, jit, ops
from bringup.errors import KernelError
devices.load_driver(sys.argv[1])
take = ops.kernel_op(
    "demo::take(Tensor x, int bytes) -> Tensor", outputs=ops.empty(1, dtype=torch.int64),
    source=jit.Template(text={WORKSPACE!r}, name="take.cpp", params="ptr(out), bytes"))
x = torch.ones(1, device="minimal")
out = torch.stack([take(x, 1 << 20) for _ in range(100)])
before = torch.minimal.memory_allocated()
addresses = set()
for _ in range(10_000):
    addresses.add(take(x, 1 << 20).item())
print(len(addresses), torch.minimal.memory_allocated() - before)
print(torch.minimal.max_memory_allocated() - before >= 1 << 20)
try:
    take(x, 1 << 62)
except KernelError as error:
    print(error)
"""
    said = fresh_python(code, str(build_driver())).splitlines()
    assert said[:2] == ["1 0", "True"]
    assert said[2].endswith(f"there is no memory left for its workspace of {1 << 62} bytes")


def test_a_module_whose_function_is_refused_goes_back_to_the_driver() -> None:
    op = ops.kernel_op(
        "devices_launch::refused(Tensor x, float factor) -> Tensor",
        source=jit.Source(text=SCALE + "// another file", name="scale.cpp"),
        outputs=ops.empty_like("x"),
    )
    x = torch.ones(2, device="npu")
    with devices.sim.faults(fail="get_function") as seen:
        with pytest.raises(RuntimeError, match=r"loading kernel 'run'.*injected"):
            op(x, 2.0)
        assert op(x, 2.0).tolist() == [2, 2]
    assert seen.functions["module_load_data"].calls == 2
    assert seen.functions["module_unload"].calls == 1
