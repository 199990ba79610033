"""`KernelLauncher`: arguments, symbols, streams, and what goes wrong. Includes
the cases of mindtorch_v2's test_custom_kernel.py.
"""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from bringup import jit, ops
from bringup.errors import ContractError, KernelError

# Kernels of a library that was built elsewhere: they write down what they were given.
LIBRARY = r"""
#include <stdint.h>
#include <string.h>
#define EXPORT __attribute__((visibility("default")))
typedef struct { int32_t a; double b; } Pair;

EXPORT int32_t aclrtlaunch_words(uint32_t blocks, void* stream, uint64_t* out, uint64_t n,
                                 double x) {
  out[0] = blocks;
  out[1] = (uint64_t)(uintptr_t)stream;
  out[2] = n;
  memcpy(&out[3], &x, sizeof x);
  return 0;
}
EXPORT int32_t aclrtlaunch_typed(uint32_t blocks, void* stream, double* out, int8_t a, int16_t b,
                                 int32_t c, int64_t d, uint8_t e, uint16_t f, uint32_t g,
                                 uint64_t h, float i, double j) {
  (void)blocks; (void)stream;
  out[0] = a; out[1] = b; out[2] = c; out[3] = (double)d; out[4] = e; out[5] = f; out[6] = g;
  out[7] = (double)h; out[8] = i; out[9] = j;
  return 0;
}
EXPORT int32_t aclrtlaunch_pair(uint32_t blocks, void* stream, double* out, Pair pair, void* none) {
  (void)blocks; (void)stream;
  out[0] = pair.a; out[1] = pair.b; out[2] = none == 0;
  return 0;
}
EXPORT int32_t aclrtlaunch_fails(uint32_t blocks, void* stream) {
  (void)blocks; (void)stream;
  return 507;
}
"""


@pytest.fixture(scope="module")
def library(kernel_cache: Path) -> Path:
    source = jit.Source(text=LIBRARY, name="library.c", entry="words", abi="ascendc")
    return jit.compile(source).path


@pytest.fixture
def launcher(library: Path) -> ops.KernelLauncher:
    return ops.KernelLauncher(library)


def test_block_dim_and_stream_are_passed_ints_are_uint64_and_floats_double(
    launcher: ops.KernelLauncher,
) -> None:
    out = torch.zeros(4, dtype=torch.uint64)
    args = [ops.tensor_ptr(out), 2**64 - 2, 0.1]
    launcher.launch("words", block_dim=2**32 - 1, args=args, stream=0x1234)
    assert out[:3].tolist() == [2**32 - 1, 0x1234, 2**64 - 2]
    assert out.view(torch.float64)[3] == 0.1


def test_negative_int_keeps_the_bits_of_an_int64(launcher: ops.KernelLauncher) -> None:
    out = torch.zeros(4, dtype=torch.int64)
    launcher.launch("words", block_dim=1, args=[out, -3, 0.0])
    assert out[2] == -3


def test_typed_numbers_reach_parameters_of_their_type(launcher: ops.KernelLauncher) -> None:
    """No guessing where the kernel's parameter is narrower than 64 bits."""
    out = torch.zeros(10, dtype=torch.float64)
    given = [
        ops.i8(-128), ops.i16(-(2**15)), ops.i32(-(2**31)), ops.i64(-(2**40)),
        ops.u8(255), ops.u16(2**16 - 1), ops.u32(2**32 - 1), ops.u64(2**40),
        ops.f32(0.5), ops.f64(0.1),
    ]  # fmt: skip
    launcher.launch("typed", block_dim=1, args=[out, *given])
    assert out.tolist() == [
        -128, -(2**15), -(2**31), -(2**40), 255, 2**16 - 1, 2**32 - 1, 2**40, 0.5, 0.1,
    ]  # fmt: skip


def test_ctypes_values_and_none_are_passed_as_they_are(launcher: ops.KernelLauncher) -> None:
    """A tiling struct goes by value."""

    class Pair(ctypes.Structure):
        _fields_ = (("a", ctypes.c_int32), ("b", ctypes.c_double))

    out = torch.zeros(3, dtype=torch.float64)
    launcher.launch("pair", block_dim=1, args=[out, Pair(-7, 2.5), None])
    assert out.tolist() == [-7, 2.5, 1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ops.i8(128), "ops.i8: 128 is outside -128 to 127"),
        (lambda: ops.i32(2**31), "ops.i32: 2147483648 is outside -2147483648 to 2147483647"),
        (lambda: ops.u32(-1), "ops.u32: -1 is outside 0 to 4294967295"),
        (lambda: ops.f32(1e39), r"ops.f32: 1e\+39 is beyond the range of a 32-bit float"),
    ],
)
def test_typed_number_that_does_not_fit_is_refused(make: Any, message: str) -> None:
    with pytest.raises(OverflowError, match=message):
        make()


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_typed_integers_fit_up_to_their_ends(bits: int) -> None:
    half = 2 ** (bits - 1)
    for name, lowest, highest in ((f"i{bits}", -half, half - 1), (f"u{bits}", 0, 2 * half - 1)):
        make = getattr(ops, name)
        assert (make(lowest).value, make(highest).value) == (lowest, highest)
        for value in (lowest - 1, highest + 1):
            with pytest.raises(OverflowError, match=f"ops.{name}: {value} is outside"):
                make(value)


def test_typed_number_takes_no_float_for_an_int() -> None:
    with pytest.raises(TypeError, match=r"ops.i32: expected an int, got float \(1.5\)"):
        ops.i32(1.5)  # type: ignore[arg-type]


def test_infinity_is_a_float(launcher: ops.KernelLauncher) -> None:
    assert ops.f32(float("inf")).value == float("inf")


def test_symbol_is_looked_up_once(launcher: ops.KernelLauncher) -> None:
    libraries = launcher._libraries
    assert libraries.get("aclrtlaunch_words") is libraries.get("aclrtlaunch_words")


def test_missing_symbol_names_symbol_and_library(
    launcher: ops.KernelLauncher, library: Path
) -> None:
    with pytest.raises(RuntimeError, match=rf"Symbol 'aclrtlaunch_no' not found in {library}"):
        launcher.launch("no", block_dim=1)


def test_return_code_becomes_an_error(launcher: ops.KernelLauncher) -> None:
    with pytest.raises(KernelError, match=r"kernel 'fails' of .*: launch failed with code 507"):
        launcher.launch("fails", block_dim=1)


def test_missing_library_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no such kernel library.*libk.so"):
        ops.KernelLauncher(tmp_path / "libk.so")


def test_file_that_is_no_library_is_named(tmp_path: Path) -> None:
    (tmp_path / "libk.so").write_text("not a library")
    with pytest.raises(KernelError, match=r"libk.so cannot be loaded: .*"):
        ops.KernelLauncher(tmp_path / "libk.so")


def test_launcher_without_a_library_is_refused() -> None:
    with pytest.raises(TypeError, match="expected the path of at least one shared library"):
        ops.KernelLauncher()


@pytest.mark.parametrize("block_dim", [0, -1, 2**32])
def test_block_dim_out_of_range_is_refused(launcher: ops.KernelLauncher, block_dim: int) -> None:
    with pytest.raises(ValueError, match=f"block_dim must be 1 to 4294967295, got {block_dim}"):
        launcher.launch("fails", block_dim=block_dim)


@pytest.mark.parametrize("block_dim", [1.0, True, None])
def test_block_dim_of_another_type_is_refused(launcher: ops.KernelLauncher, block_dim: Any) -> None:
    with pytest.raises(TypeError, match=r"kernel 'fails': block_dim is a .*; expected int"):
        launcher.launch("fails", block_dim=block_dim)


@pytest.mark.parametrize("value", ["text", object(), [1]])
def test_argument_of_another_type_is_named(launcher: ops.KernelLauncher, value: Any) -> None:
    with pytest.raises(TypeError, match=r"kernel 'words': argument 1 is a .*expected a tensor"):
        launcher.launch("words", block_dim=1, args=[0, value])


def test_int_beyond_64_bits_is_refused(launcher: ops.KernelLauncher) -> None:
    with pytest.raises(OverflowError, match="argument 0 is 18446744073709551616, beyond 64 bits"):
        launcher.launch("words", block_dim=1, args=[2**64])


def test_stream_of_another_type_is_refused(launcher: ops.KernelLauncher) -> None:
    with pytest.raises(TypeError, match=r"stream is a str \('0'\); expected a torch.Stream"):
        launcher.launch("fails", block_dim=1, stream="0")  # type: ignore[arg-type]


def test_meta_tensor_is_refused_before_the_launch(launcher: ops.KernelLauncher) -> None:
    with pytest.raises(ContractError, match=r"a meta tensor of shape \[2\] has no memory"):
        launcher.launch("words", block_dim=1, args=[torch.empty(2, device="meta"), 0, 0.0])


def test_several_libraries_are_searched_in_order(library: Path, kernel_cache: Path) -> None:
    text = (
        '__attribute__((visibility("default"))) int aclrtlaunch_fails(unsigned n, void* s)'
        " { (void)n; (void)s; return 0; }"
    )
    other = jit.compile(jit.Source(text=text, name="other.c", entry="fails", abi="ascendc")).path
    ops.KernelLauncher(other, library).launch("fails", block_dim=1)
    with pytest.raises(KernelError, match="507"):
        ops.KernelLauncher(library, other).launch("fails", block_dim=1)


def test_threads_launch_at_the_same_time(library: Path) -> None:
    launcher = ops.KernelLauncher(library)
    outs = [torch.zeros(4, dtype=torch.int64) for _ in range(4)]

    def work(number: int) -> None:
        for i in range(200):
            launcher.launch("words", block_dim=1, args=[outs[number], number * 1000 + i, 0.0])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [int(out[2]) for out in outs] == [199, 1199, 2199, 3199]
