"""Device code behind operators on tensors of torch's CUDA backend: what CUDA is called for, for
which device and in which stream. torch_cuda.py says what stands in for torch's CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.forked_python import output_of

from bringup import jit

BEGIN = """
import sys
import torch
from tests.cuda_driver.torch_cuda import Cuda
from bringup import devices, graphs, jit, ops
cuda = Cuda(sys.argv[1], sys.argv[2], tuple(map(int, sys.argv[3].split(","))))
TEXT = '''extern "C" __global__ void twice(float* __restrict__ out, const float* x, long long n) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) out[i] = 2 * x[i];
}'''

def define(name="twice", grid="(numel(x) + 1) // 2", block=2, text=TEXT, entry="twice", **more):
    return ops.kernel_op(
        f"bringup_test_cuda::{name}(Tensor x) -> Tensor",
        source=jit.Source(text=text, name="code.cu", kind="device"),
        entry=entry,
        args="ptr(out, float32), ptr(x), numel(x)",
        grid=grid,
        block=block,
        outputs=ops.empty_like("x"),
        **more,
    )

def error_of(call, *args):
    try:
        call(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}".partition("\\nException raised")[0]
    raise AssertionError("no error")
"""

Run = Callable[..., list[str]]


@pytest.fixture
def run(package: Path, torch_cuda: Path, stand_in: Path, tmp_path: Path) -> Run:
    """`run(program, models)`: what CUDA was called for by a program with tensors on `cuda`."""
    if problem := jit.toolchain("cuda", kind="device").problem:
        pytest.skip(problem)
    log = tmp_path / "calls"

    def run(program: str, models: str = "90", **variables: str) -> list[str]:
        log.write_text("")
        variables |= {"CUDA_STAND_IN_LOG": str(log), "CUDA_STAND_IN_MODELS": models}
        variables["CUDA_STAND_IN_DEVICES"] = str(models.count(",") + 1)
        found = f"import sys; sys.path.insert(0, {str(package)!r})\n"
        arguments = (str(torch_cuda), str(stand_in), models)
        assert output_of(f"{found}{BEGIN}{program}\nprint('done')", *arguments, **variables) == (
            "done"
        )
        return log.read_text().splitlines()

    return run


def test_device_code_runs_in_torchs_current_stream_of_the_tensors_device_built_for_its_model(
    run: Run,
) -> None:
    lines = run(
        """
twice = define()
x, y = cuda.tensor([1, 2, 3]), cuda.tensor([5, 6], device=1)
first = twice(x)  # in the legacy default stream
cuda.new_stream(0), cuda.new_stream(1)
second, third = twice(x), torch.ops.bringup_test_cuda.twice(y)
assert cuda.current_device == 0
assert [cuda.values(made) for made in (first, second, third)] == [[2, 4, 6], [2, 4, 6], [10, 12]]
assert [str(made.device) for made in (first, second, third)] == ["cuda:0", "cuda:0", "cuda:1"]
""",
        "90,80",
    )
    modules = [line[:21].strip() for line in lines if line.startswith("module")]
    assert modules == ["module device=0 sm_90", "module device=1 sm_80"]
    launches = [line.partition(" values=")[0] for line in lines if line.startswith("launch")]
    _, (_, on_first, *_), (_, on_second, *_), _ = (
        line.split() for line in lines if line.startswith("stream")
    )  # the driver makes one, too, for each device
    assert launches == [
        "launch stream=0 twice grid=2,1,1 block=2,1,1 shared=0",
        f"launch stream={on_first} twice grid=2,1,1 block=2,1,1 shared=0",
        f"launch stream={on_second} twice grid=1,1,1 block=2,1,1 shared=0",
    ]


def test_clusters_cooperative_launches_and_200_kib_of_shared_memory_reach_cuda(run: Run) -> None:
    lines = run(
        """
x = cuda.tensor([1, 2, 3, 4, 5, 6, 7])
wide = define("wide", cluster=(2, 1), cooperative=True, shared=200 * 1024)
assert cuda.values(wide(x)) == [2, 4, 6, 8, 10, 12, 14]
said = error_of(define("odd", grid="numel(x)", cluster=2), x)
assert said.endswith(" grid of 7 x 1 x 1 blocks must be of whole clusters of 2 x 1 x 1"), said
said = error_of(define("many", grid=16, cluster=16), x)
assert "'bringup_test_cuda::many' has clusters of 16 blocks" in said, said
assert "device 'cuda' takes 8 at most" in said, said
said = error_of(define("crowd", grid=133, cooperative=True), x)
assert "bringup_test_cuda::crowd failed on device 'cuda': " in said, said
assert "::crowd: kernel 'twice': CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE" in said, said
"""
    )
    (launch,) = [line for line in lines if line.startswith("launch")]
    assert " grid=4,1,1 block=2,1,1 shared=204800 cluster=2,1,1 cooperative values=" in launch


def test_a_gpu_without_clusters_refuses_them_before_cuda_is_called(run: Run) -> None:
    lines = run(
        """
said = error_of(define(cluster=2), cuda.tensor([1, 2, 3, 4]))
assert said == "RuntimeError: operator 'bringup_test_cuda::twice' has clusters of 2 blocks " \\
    "(cluster=), and device 'cuda' takes none", said
""",
        "80",
    )
    assert not [line for line in lines if line.startswith("launch")]


def test_a_stream_that_torch_captures_captures_the_launch(run: Run) -> None:
    lines = run(
        """
import ctypes as c
twice = define()
x = cuda.tensor([1, 2, 3])
twice(x)  # loads the kernel
queue, graph, ready = cuda.new_stream(), c.c_void_p(), c.c_void_p()
assert cuda.api.cuStreamBeginCapture_v2(queue, 2) == 0
y = twice(x)
assert cuda.api.cuStreamEndCapture(queue, c.byref(graph)) == 0
assert cuda.values(y) != [2, 4, 6]
assert cuda.api.cuGraphInstantiateWithFlags(c.byref(ready), graph, c.c_uint64(0)) == 0
assert cuda.api.cuGraphLaunch(ready, queue) == 0
assert cuda.values(y) == [2, 4, 6]

def captured():
    with graphs.capture(graphs.CapturedGraph()):
        twice(x)

assert error_of(captured).startswith("CaptureError"), error_of(captured)
"""
    )
    assert len([line for line in lines if line.startswith("graph kernel twice")]) == 1


def test_what_cuda_refuses_names_the_operator_and_the_kernel(run: Run) -> None:
    lines = run(
        """
x = cuda.tensor([1, 2, 3])
said = error_of(define("large", block=1025), x)
assert "bringup_test_cuda::large failed on device 'cuda': " in said, said
assert "1025 threads in dimension 0" in said, said
said = error_of(define("shared", shared=300_000), x)
assert "bringup_test_cuda::shared" in said and "300000 bytes of shared memory" in said, said
assert "kernel 'twice' declares" in said, said
"""
    )
    assert not [line for line in lines if line.startswith("launch")]


WILD = """
text = TEXT.replace("twice", "wild")
wild = define("wild", text=text, entry="wild")
x = cuda.tensor([1, 2, 3])
"""


def test_a_kernel_that_fails_is_named_by_the_launch_where_launches_wait(run: Run) -> None:
    run(
        f"""{WILD}
said = error_of(wild, x)
assert "bringup_test_cuda::wild failed on device 'cuda:0': CUDA error 700" in said, said
""",
        BRINGUP_LAUNCH_BLOCKING="1",
    )


def test_after_a_kernel_that_failed_the_next_launch_says_how_it_is_found(run: Run) -> None:
    run(
        f"""{WILD}
twice = define()
twice(x)
wild(x)
cuda.values(x)
said = error_of(twice, x)
assert "bringup_test_cuda::twice failed on device 'cuda': " in said, said
assert "kernel 'twice': CUDA_ERROR_ILLEGAL_ADDRESS" in said, said
assert "BRINGUP_LAUNCH_BLOCKING=1" in said, said
"""
    )


def test_the_loaded_driver_and_torchs_cuda_share_a_kernel_and_keep_their_streams(run: Run) -> None:
    lines = run(
        """
twice = define()
x = cuda.tensor([1, 2, 3])
assert cuda.values(twice(x)) == [2, 4, 6]
devices.load_driver("cuda")
assert twice(torch.tensor([4.0, 5.0], device="nv")).tolist() == [8, 10]
assert cuda.values(twice(x)) == [2, 4, 6]
"""
    )
    launches = [line.split()[1] for line in lines if line.startswith("launch")]
    assert launches[0] == launches[2] == "stream=0" != launches[1]


def test_what_no_wait_would_see_and_other_forms_are_refused_in_words(run: Run) -> None:
    run(
        """
x = cuda.tensor([1, 2, 3])
text = TEXT.replace("long long n)", "long long n, int* fault)")
told = ops.kernel_op(
    "bringup_test_cuda::told(Tensor x) -> Tensor",
    source=jit.Source(text=text, name="code.cu", kind="device"),
    entry="twice", args="ptr(out, float32), ptr(x), numel(x), fault('a rule')", grid=2, block=2,
    outputs=ops.empty_like("x"),
)
said = error_of(told, x)
assert "told: args= has fault(), which no wait for a device of torch's looks at" in said, said
text = TEXT.replace("twice(float* __restrict__ out, const float* x, long long n)", "run(void** a)")
plain = ops.kernel_op(
    "bringup_test_cuda::plain(Tensor x) -> Tensor",
    source=jit.Source(text=text, name="code.cu", kind="device"),
    outputs=ops.empty_like("x"),
)
said = error_of(plain, x)
assert "'CUDA' backend" in said, said
"""
    )


def test_one_fatbin_of_a_bundle_serves_devices_of_several_models_without_a_compiler(
    run: Run, tmp_path: Path
) -> None:
    if problem := jit.toolchain("cuda").problem:
        pytest.skip(problem)
    bundle = str(tmp_path / "kernels")
    run(
        f"""
twice = define()
spec = twice.params(torch.ones(2)).spec()
(built,) = jit.prebuild([spec], targets=["nv:sm_80+sm_90"]).check().outcomes
jit.cache().export_bundle({bundle!r}, [built.key])
"""
    )
    lines = run(
        f"""
from bringup.errors import MissingCompilerError
import bringup_cuda._target as target
jit.cache().import_bundle({bundle!r})
def absent(*_):
    raise MissingCompilerError("absent")
target.NvTarget.toolchain = absent
twice = define()
for device in range(2):
    assert cuda.values(twice(cuda.tensor([1, 2, 3], device=device))) == [2, 4, 6]
assert len(jit.cache().entries()) == 1
""",
        "90,80",
        BRINGUP_CACHE_DIR=str(tmp_path / "elsewhere"),
    )
    assert [line for line in lines if line.startswith("module")] == [
        "module device=0 sm_90 of a fatbin",
        "module device=1 sm_80 of a fatbin",
    ]


def test_without_the_package_a_call_says_what_is_missing(
    run: Run, torch_cuda: Path, stand_in: Path
) -> None:
    program = BEGIN + "print(error_of(define(), cuda.tensor([1, 2, 3])))"
    said = output_of(program, str(torch_cuda), str(stand_in), "90")
    assert said.startswith(
        "DeviceError: bringup_test_cuda::twice: device code for CUDA tensors is started by the "
        "driver of NVIDIA GPUs, of the package bringup-cuda (drivers/cuda): there is no driver "
        "named 'cuda'"
    )
