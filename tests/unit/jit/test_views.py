"""kernel_views.h, from kernels that are compiled and run."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.jit.support import Call, run

from bringup import jit
from bringup.errors import CompileError

SCALE = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const bringup::View<const float, 2> x(args[0]);
  const bringup::View<float, 2> out(args[1]);
  bringup::parallel_for(ctx, x.size(0), 2, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t j = 0; j < x.size(1); ++j) out(i, j) = 2 * x(i, j);
  });
  return 0;
}
"""

INSPECT = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<const double> x(args[0]);
  const bringup::View<int64_t, 1> out(args[1]);
  int64_t n = 0;
  out(n++) = x.rank();
  out(n++) = x.numel();
  out(n++) = x.contiguous();
  out(n++) = bringup::matches<double>(bringup::tensor(args[0]));
  out(n++) = bringup::matches<double>(bringup::tensor(args[0]), 2);
  out(n++) = bringup::matches<float>(bringup::tensor(args[0]));
  for (int32_t i = 0; i < x.rank(); ++i) out(n++) = x.stride(i);
  return 0;
}
"""

ARGUMENTS = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t n, const bringup_ctx* ctx) {
  using namespace bringup;
  if (n != 8) return fail(ctx, "expected eight arguments");
  const View<double, 1> out(args[7]);
  out(0) = scalar<int64_t>(args[0]);
  out(1) = scalar<double>(args[1]);
  out(2) = scalar<bool>(args[2]);
  out(3) = is_none(args[3]) ? scalar_or<double>(args[3], 0.25) : -1;
  const char* word = text(args[4]);
  int length = 0;
  while (word[length] != 0) ++length;
  out(4) = length;
  double total = 0;
  for (const int64_t value : list<int64_t>(args[5])) total += value;
  out(5) = total;
  const List<DLTensor> tensors = list<DLTensor>(args[6]);
  out(6) = 0;
  for (int64_t i = 0; i < tensors.size(); ++i) out(6) += View<float, 1>(tensors[i])(0);
  out(7) = list<double>(args[3]).size() + scalar<float>(args[1]);
  return 0;
}
"""

CONVERT = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<const float, 1> x(args[0]);
  const bringup::View<uint16_t, 2> out(args[1]);
  for (int64_t i = 0; i < x.size(0); ++i) {
    out(0, i) = bringup::half(x(i)).bits;
    out(1, i) = bringup::half::encode_bits(x(i));
    out(2, i) = bringup::bfloat16(x(i)).bits;
  }
  return 0;
}
"""

WIDEN = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<const uint16_t, 1> bits(args[0]);
  const bringup::View<float, 2> out(args[1]);
  for (int64_t i = 0; i < bits.size(0); ++i) {
    T x;
    x.bits = bits(i);
    out(0, i) = x;
#ifdef BITS
    out(1, i) = bringup::half::decode_bits(x.bits);
#else
    out(1, i) = x;
#endif
  }
  return 0;
}
"""


def kernel(text: str, **macros: Any) -> jit.Binary:
    return jit.compile(jit.Source(text=text, name="views.cpp"), macros=macros)


@pytest.mark.parametrize(
    "x",
    [
        np.arange(35, dtype=np.float32).reshape(5, 7),
        np.arange(35, dtype=np.float32).reshape(7, 5).T,
        np.arange(70, dtype=np.float32).reshape(5, 14)[:, ::2],
        np.arange(70, dtype=np.float32).reshape(10, 7)[3:8],
        np.arange(35, dtype=np.float32).reshape(5, 7)[::-1, ::-1],
        np.broadcast_to(np.arange(7, dtype=np.float32), (5, 7)),
        np.zeros((0, 7), np.float32),
        np.zeros((5, 0), np.float32),
    ],
    ids=["dense", "transposed", "step", "offset", "reversed", "expanded", "no rows", "no columns"],
)
def test_a_view_follows_strides(x: np.ndarray[Any, Any]) -> None:
    out = np.full(x.shape[::-1], -1, np.float32).T
    run(kernel(SCALE), x, out)
    np.testing.assert_array_equal(out, 2 * x)


def test_parallel_for_covers_everything_in_chunks() -> None:
    x = np.ones((5, 3), np.float32)
    call = Call()
    assert call.run(kernel(SCALE).kernel_id, x, np.empty_like(x)) == 0
    assert call.chunks == [(0, 2), (2, 4), (4, 5)]


def inspected(x: np.ndarray[Any, Any]) -> list[int]:
    out = np.zeros(6 + x.ndim, np.int64)
    run(kernel(INSPECT), x, out)
    return [int(value) for value in out]


def test_a_view_of_any_rank_knows_its_tensor() -> None:
    x = np.zeros((2, 3))
    assert inspected(x) == [2, 6, 1, 1, 1, 0, 3, 1]
    assert inspected(x.T) == [2, 6, 0, 1, 1, 0, 1, 3]
    assert inspected(np.zeros(())) == [0, 1, 1, 1, 0, 0]
    assert inspected(np.zeros((1, 3))[:, ::2])[:3] == [2, 2, 0]
    assert inspected(np.zeros((4, 3))[::5])[:3] == [2, 3, 1]  # a stride of size 1 does not count
    assert inspected(np.zeros((0, 3))[:, ::2])[:3] == [2, 0, 1]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 4), max_size=4), st.data())
def test_at_counts_in_row_major_order_whatever_the_strides(
    shape: list[int], data: st.DataObject
) -> None:
    text = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<const int64_t> x(args[0]);
  const bringup::View<int64_t, 1> out(args[1]);
  for (int64_t i = 0; i < x.numel(); ++i) out(i) = x.at(i);
  return 0;
}
"""
    x = np.arange(int(np.prod(shape, dtype=int)), dtype=np.int64).reshape(shape)
    x = x.transpose(data.draw(st.permutations(range(len(shape)))))
    out = np.zeros(x.size, np.int64)
    run(kernel(text), x, out)
    np.testing.assert_array_equal(out, x.ravel())


def test_scalars_lists_and_none_arrive() -> None:
    out = np.zeros(8)
    tensors = [np.array([value], np.float32) for value in (1.5, 2.0)]
    run(kernel(ARGUMENTS), -5, 2.5, 1, None, "word", [1, 2, 3], tensors, out)
    assert out.tolist() == [-5, 2.5, 1, 0.25, 4, 6, 3.5, 2.5]
    run(kernel(ARGUMENTS), 2**40, 0.5, 0, None, "", [], [], out)
    assert out.tolist() == [2**40, 0.5, 0, 0.25, 0, 0, 0, 0.5]


def test_fail_says_why() -> None:
    call = Call()
    assert call.run(kernel(ARGUMENTS).kernel_id, 1) == 1
    assert call.message == "expected eight arguments"


def test_workspace_is_typed_and_aligned() -> None:
    text = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  double* scratch = bringup::workspace<double>(ctx, 100);
  if (scratch == nullptr || reinterpret_cast<uintptr_t>(scratch) % 64 != 0) return 1;
  for (int i = 0; i < 100; ++i) scratch[i] = i;
  const bringup::View<double, 1> out(args[0]);
  out(0) = scratch[99];
  return 0;
}
"""
    out = np.zeros(1)
    run(kernel(text), out)
    assert out[0] == 99


def interesting_floats() -> np.ndarray[Any, Any]:
    every_half = np.arange(65536, dtype=np.uint32).astype(np.uint16).view(np.float16)
    near = np.nextafter(every_half.astype(np.float32), np.float32(0))
    random = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint32)
    limits = [65504, 65519.996, 65520, -65520, 2**-24, 2**-25, 1.5 * 2**-25, 1e38, 1e-45, -0.0]
    between = (every_half[:-1].astype(np.float32) + every_half[1:].astype(np.float32)) / 2
    values = [every_half.astype(np.float32), near, random.view(np.float32), between]
    return np.concatenate([*values, np.array(limits, np.float32)])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_half_and_bfloat16_round_like_numpy_and_torch() -> None:
    x = interesting_floats()
    out = np.zeros((3, x.size), np.uint16)
    run(kernel(CONVERT), x, out)
    nan = np.isnan(x)
    for row in out[:2].view(np.float16):
        assert np.isnan(row[nan]).all()
        np.testing.assert_array_equal(
            row[~nan].view(np.uint16), x[~nan].astype(np.float16).view(np.uint16)
        )
    expected = torch.from_numpy(x).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(out[2][~nan], expected[~nan])
    assert torch.from_numpy(out[2].view(np.int16)).view(torch.bfloat16).isnan()[nan].all()


def test_half_and_bfloat16_widen_exactly() -> None:
    bits = np.arange(65536, dtype=np.uint32).astype(np.uint16)
    out = np.zeros((2, 65536), np.float32)
    run(kernel(WIDEN, T="bringup::half", BITS=1), bits, out)
    for row in out:
        np.testing.assert_array_equal(row, bits.view(np.float16).astype(np.float32))
    run(kernel(WIDEN, T="bringup::bfloat16"), bits, out)
    expected = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(out[0], expected)


def test_the_wrong_number_of_indices_does_not_compile() -> None:
    text = SCALE.replace("out(i, j)", "out(i)")
    with pytest.raises(CompileError, match="one index for each dimension"):
        kernel(text)


def test_the_headers_are_fine_alone_and_within_extern_c(tmp_path: Path) -> None:
    sources = {
        "views.cpp": '#include "bringup/kernel_views.h"\n',
        "extern.cpp": 'extern "C" {\n#include "bringup/kernel.h"\n}\n',
        "plain.c": '#include "bringup/kernel.h"\n',
    }
    for name, text in sources.items():
        (tmp_path / name).write_text(text)
        standard = "-std=c99" if name.endswith(".c") else "-std=c++17"
        command = ["g++" if standard == "-std=c++17" else "gcc", standard, "-fsyntax-only"]
        strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
        subprocess.run([*command, *strict, *jit.include_flags(), str(tmp_path / name)], check=True)
