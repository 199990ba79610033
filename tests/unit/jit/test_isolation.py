"""Kernels of one process share no variable: what g++ lets the loader make one for all libraries."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.jit.support import run

from bringup import jit, ops

SCALE = """
#include "bringup/kernel.h"
inline float isolated_factor = FACTOR;
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<float, 1> x(args[0]);
  for (int64_t i = 0; i < x.size(0); ++i) x(i) *= isolated_factor;
  return 0;
}
"""
TABLE = """
#include <vector>
#include "bringup/kernel.h"
inline const std::vector<T>& isolated_table() {
  static const std::vector<T> table = {1, 2, 3};
  return table;
}
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<const T, 1> x(args[0]);
  const bringup::View<T, 1> out(args[1]);
  for (int64_t i = 0; i < x.size(0); ++i) out(i) = x(i) + isolated_table()[i];
  return 0;
}
"""
SIZED = """
#include "bringup/kernel.h"
inline float isolated_sized[SIZE];
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  isolated_sized[SIZE - 1] += 1;
  const bringup::View<float, 1> x(args[0]);
  x(0) = isolated_sized[SIZE - 1];
  return 0;
}
"""


def ones(binary: jit.Binary, count: int = 1) -> list[float]:
    x = np.ones(count, np.float32)
    run(binary, x)
    return [float(value) for value in x]


def test_variants_have_inline_variables_of_their_own() -> None:
    source = jit.Source(text=SCALE, name="isolated.cpp")
    assert [ones(jit.compile(source, macros={"FACTOR": n})) for n in (2, 3, 5)] == [[2], [3], [5]]


def test_variants_of_other_dtypes_have_tables_of_their_own() -> None:
    add = ops.kernel_op(
        "isolation_test::add(Tensor x) -> Tensor",
        source=jit.Source(text=TABLE, name="isolated_table.cpp"),
        outputs=ops.empty_like("x"),
        dtypes={"T": "x"},
    )
    for dtype in (torch.float32, torch.float64, torch.int64):
        assert add(torch.zeros(3, dtype=dtype)).tolist() == [1, 2, 3]


def test_a_larger_table_is_not_the_smaller_one() -> None:
    source = jit.Source(text=SIZED, name="isolated_size.cpp")
    for size in (4, 4_000_000):
        assert ones(jit.compile(source, macros={"SIZE": size})) == [1]


def test_an_edited_source_has_a_table_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "edited.cpp"
    for factor in (2, 9):
        path.write_text(f"#define FACTOR {factor}\n{SCALE.replace('isolated', 'edited')}")
        assert ones(jit.compile(jit.Source(path))) == [factor]


def test_a_kernel_with_inline_variables_is_unloaded() -> None:
    source = jit.Source(text=SCALE.replace("isolated", "unloaded"), name="isolated.cpp")
    binary = jit.compile(source, macros={"FACTOR": 7})
    assert ones(binary) == [7]
    assert binary.key in jit.cache().unload().closed
    assert str(binary.path) not in Path("/proc/self/maps").read_text()
    assert ones(binary) == [7]


@pytest.mark.parametrize("target", ["cpu", "sim", "aarch64", "cuda"])
def test_no_target_leaves_symbols_that_are_one_for_the_process(target: str, tmp_path: Path) -> None:
    if problem := jit.toolchain(target).problem:
        pytest.skip(problem)
    path = tmp_path / ("kernel.cu" if target == "cuda" else "kernel.cpp")
    path.write_text(SCALE)
    binary = jit.compile(jit.Source(path), macros={"FACTOR": 2}, target=target)
    command = ["readelf", "--dyn-syms", "-W", binary.path]
    symbols = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "isolated_factor" in symbols
    assert "UNIQUE" not in symbols


def test_gcc_is_told_to_make_no_unique_symbols() -> None:
    for target in ("cpu", "sim", "aarch64"):
        toolchain = jit.toolchain(target)
        if not toolchain.problem and "clang" not in toolchain.version:
            assert "-fno-gnu-unique" in toolchain.flags
