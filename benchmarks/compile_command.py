"""What a cold compile costs that no cache can save: the compiler on two small kernels, and NVRTC on
device code.

The budgets are times (50, 80 and 50 ms on a quiet machine of the kind this was designed on), so the
peer of these rows is the budget itself; beside them the plain command of the same file:
`c++ -O3 -march=native -fPIC -shared`.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks._harness import Row, paired
from bringup import _native, jit

ELEMENTWISE = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<const float, 1> x(args[0]);
  const bringup::View<float, 1> out(args[1]);
  for (int64_t i = 0; i < x.size(0); ++i) out(i) = x(i) + 1;
  return 0;
}
"""
GEMM = """
#include "bringup/kernel.h"
namespace {
struct Relu {
  static float apply(float x) { return x > 0 ? x : 0; }
};

// A tile of rows x columns in registers over all of k; b is read a row at a time.
template <int kRows, int kColumns, typename Epilogue>
void tile(const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc,
          int64_t depth) {
  float sum[kRows][kColumns] = {};
  for (int64_t k = 0; k < depth; ++k)
    for (int i = 0; i < kRows; ++i)
      for (int j = 0; j < kColumns; ++j) sum[i][j] += a[i * lda + k] * b[k * ldb + j];
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kColumns; ++j) c[i * ldc + j] = Epilogue::apply(sum[i][j]);
}
}  // namespace

BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const bringup::View<const float, 2> a(args[0]), b(args[1]);
  const bringup::View<float, 2> c(args[2]);
  const int64_t rows = a.size(0), columns = b.size(1), depth = a.size(1);
  bringup::parallel_for(ctx, rows / 4, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = 4 * begin; i < 4 * end; i += 4)
      for (int64_t j = 0; j < columns; j += 16)
        tile<4, 16, Relu>(&a(i, 0), a.stride(0), &b(0, j), b.stride(0), &c(i, j), c.stride(0),
                          depth);
  });
  return 0;
}
"""
DEVICE = """
extern "C" __global__ void run(const float* x, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] + 1;
}
"""
_serial = itertools.count()


def _new(text: str) -> str:
    return f"{text}// {os.getpid()} {next(_serial)}\n"


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter_ns()
    work()
    return time.perf_counter_ns() - start


def _plain(folder: Path, text: str) -> float:
    """The compiler alone, as one would call it by hand."""
    file = folder / "plain.cpp"
    file.write_text(_new(text))
    command = [
        *(str(jit.toolchain("cpu").path), "-O3", "-march=native", "-fPIC", "-shared"),
        *(*jit.include_flags(), "-o", "plain.so", file.name),
    ]
    return _timed(lambda: subprocess.run(command, cwd=folder, check=True))


def _against_budget(name: str, milliseconds: float, samples: list[float]) -> Row:
    pairs = [(sample, milliseconds * 1e6) for sample in samples]
    return paired(name, f"{milliseconds:g} ms", pairs, budget=1.0)


@contextmanager
def _own_cache() -> Iterator[Path]:
    """A folder with a cache of its own, and no lines about compiling on stderr."""
    names = ("BRINGUP_CACHE_DIR", "BRINGUP_JIT_PROGRESS")
    before = {name: os.environ.get(name) for name in names}
    with TemporaryDirectory() as folder:
        os.environ.update(dict(zip(names, (f"{folder}/cache", "0"), strict=True)))
        try:
            yield Path(folder)
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


def run(quick: bool = False) -> list[Row]:
    """Two rows for each kernel, one for NVRTC where it is there."""
    rounds, rows = 3 if quick else 15, []
    _native.core()
    with _own_cache() as folder:
        for name, text, budget in (("elementwise", ELEMENTWISE, 50), ("GEMM", GEMM, 80)):
            rows += _host_rows(name, text, budget, folder, rounds)
        if not jit.toolchain("cuda", kind="device").problem:
            rows.append(_against_budget("cold compile: NVRTC", 50, _device_samples(rounds)))
    return rows


def _host_rows(name: str, text: str, budget: float, folder: Path, rounds: int) -> list[Row]:
    def ours() -> float:
        source = jit.Source(text=_new(text), name="bench.cpp")
        return _timed(lambda: jit.compile(source).kernel_id)

    ours()
    pairs = [(ours(), _plain(folder, text)) for _ in range(rounds)]
    return [
        _against_budget(f"cold compile: {name}", budget, [mine for mine, _ in pairs]),
        paired(f"cold compile: {name}", "c++ by hand", pairs),
    ]


def _device_samples(rounds: int) -> list[float]:
    def compile_one() -> object:
        source = jit.Source(text=_new(DEVICE), name="bench.cu", kind="device")
        return jit.compile(source, target="cuda")

    compile_one()
    return [_timed(compile_one) for _ in range(rounds)]
