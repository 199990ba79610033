"""Device code on the GPU: NVRTC and `jit.CudaKernel`, Triton operators, errors of a running kernel,
the cache across processes.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cuda.kernels import AXPY, SCALE, WILD_WRITE

from bringup import jit, ops
from bringup.errors import DeviceError

NVRTC = pytest.mark.skipif(
    importlib.util.find_spec("cuda") is None, reason="pip install 'bringup[cuda]'"
)
TRITON = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="pip install 'bringup[triton]'"
)


@pytest.fixture
def axpy(tmp_path: Path) -> jit.CudaKernel:
    """`y += a * x + VALUE`, built by NVRTC for this GPU."""
    (tmp_path / "value.h").write_text("#define VALUE 1\n")
    (tmp_path / "axpy.cu").write_text(AXPY)
    major, minor = torch.cuda.get_device_capability()
    source = jit.Source(tmp_path / "axpy.cu", kind="device", entry="axpy")
    return jit.CudaKernel(jit.compile(source, target=f"cuda:sm_{major}{minor}"))


class OnStream:
    """A stream of torch as cuda-core takes it."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._stream.cuda_stream


@NVRTC
@pytest.mark.parametrize("side", [False, True])
def test_nvrtcs_kernel_computes_on_the_given_stream(axpy: jit.CudaKernel, side: bool) -> None:
    stream = torch.cuda.Stream() if side else torch.cuda.current_stream()
    with torch.cuda.stream(stream):
        x, y = torch.randn(1000, device="cuda"), torch.randn(1000, device="cuda")
        expected = y + 2.5 * x + 1
        axpy.launch(
            4,
            256,
            y.data_ptr(),
            x.data_ptr(),
            np.float32(2.5),
            np.int64(1000),
            stream=OnStream(stream) if side else None,
        )
        torch.testing.assert_close(y, expected)


@NVRTC
def test_a_block_that_is_too_large_is_refused_in_cudas_words(axpy: jit.CudaKernel) -> None:
    with pytest.raises(DeviceError, match="kernel 'axpy' cannot be started on this GPU"):
        axpy.launch(1, 4096, 0, 0, np.float32(0), np.int64(0))


@NVRTC
def test_a_gpu_that_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "value.h").write_text("#define VALUE 2\n")
    (tmp_path / "axpy.cu").write_text(AXPY)
    source = jit.Source(tmp_path / "axpy.cu", kind="device", entry="axpy")
    binary = jit.compile(source, target="cuda")
    with pytest.raises(DeviceError, match="kernel 'axpy' cannot be started"):
        jit.CudaKernel(binary, device=torch.cuda.device_count())


TRITON_ADD = """
import triton
import triton.language as tl


@triton.jit
def add_scaled(x_ptr, y_ptr, out_ptr, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    sums = tl.load(x_ptr + at, inside) + tl.load(y_ptr + at, inside)
    tl.store(out_ptr + at, sums * factor, inside)
"""


@TRITON
def test_a_triton_operator_runs_compiles_and_passes_opcheck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "triton_kernels_of_test.py").write_text(TRITON_ADD)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("triton_kernels_of_test")
    add_scaled = ops.triton_op(
        "bringup_test_cuda::add_scaled(Tensor x, Tensor y, float factor) -> Tensor",
        kernel=module.add_scaled,
        grid="(numel(x) + 255) // 256",
        args="x, y, out, numel(x), factor",
        outputs=ops.empty_like("x"),
        checks=(ops.same_shape("x", "y"), ops.same_dtype("x", "y")),
        constants={"BLOCK": 256},
    )
    try:
        for side in (torch.cuda.default_stream(), torch.cuda.Stream()):
            with torch.cuda.stream(side):
                x, y = torch.randn(2, 5000, device="cuda").unbind()
                torch.testing.assert_close(add_scaled(x, y, 0.5), (x + y) * 0.5)
        assert add_scaled(x[:0], y[:0], 1.0).shape == (0,)
        compiled = torch.compile(lambda a, b: add_scaled(a * 2, b, 0.5).sum(), fullgraph=True)
        torch.testing.assert_close(compiled(x, y), ((x * 2 + y) * 0.5).sum())
        torch.library.opcheck(add_scaled.overload, (x, y, 0.5))
    finally:
        add_scaled.undefine()
        torch._dynamo.reset()


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program of its own: an error of the GPU is the end of a process's CUDA."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=300,
    )


WILD = f"""
    import torch
    from bringup import jit, ops
    wild = ops.kernel_op(
        "bringup_test_cuda::wild(Tensor x) -> Tensor",
        source=jit.Source(text={WILD_WRITE!r}, name="wild.cu"),
        outputs=ops.empty_like("x"),
    )
    wild(torch.ones(4, device="cuda"))
    print("launched")
    torch.cuda.synchronize()
"""


def test_a_wild_write_ends_in_cudas_error_and_is_named_where_launches_block() -> None:
    late = run(WILD)
    assert late.returncode == 1
    assert "launched" in late.stdout
    assert "illegal memory access" in late.stderr
    early = run(WILD, CUDA_LAUNCH_BLOCKING="1")
    assert "launched" not in early.stdout
    assert "bringup_test_cuda::wild: the kernel failed with status 1" in early.stderr
    assert "illegal memory access" in early.stderr


def test_a_second_process_takes_the_kernel_from_the_cache(tmp_path: Path) -> None:
    script = f"""
        import torch
        from bringup import jit, ops
        scale = ops.kernel_op(
            "bringup_test_cuda::scale(Tensor x, float factor) -> Tensor",
            source=jit.Source(text={SCALE!r}, name="scale.cu"),
            outputs=ops.empty_like("x"),
            dtypes={{"ELEMENT": "x"}},
        )
        assert scale(torch.ones(3, device="cuda"), 2.0).tolist() == [2.0, 2.0, 2.0]
    """
    first = run(script, BRINGUP_CACHE_DIR=str(tmp_path))
    assert first.returncode == 0, first.stderr
    entries = sorted(path for path in tmp_path.rglob("*.so"))
    second = run(script, BRINGUP_CACHE_DIR=str(tmp_path))
    assert second.returncode == 0, second.stderr
    assert sorted(path for path in tmp_path.rglob("*.so")) == entries
    assert len(entries) == 1
