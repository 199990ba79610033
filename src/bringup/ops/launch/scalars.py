"""Typed numbers for `KernelLauncher`: what a C parameter is where int and float do not say it."""

from __future__ import annotations

import ctypes
import math


def _checked(name: str, value: int, lowest: int, highest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"ops.{name}: expected an int, got {type(value).__name__} ({value!r})")
    if not lowest <= value <= highest:
        raise OverflowError(f"ops.{name}: {value} is outside {lowest} to {highest}")
    return value


def i8(value: int) -> ctypes.c_int8:
    """Return `value` as an `int8_t`. All of these raise `OverflowError` if it does not fit."""
    return ctypes.c_int8(_checked("i8", value, -(2**7), 2**7 - 1))


def i16(value: int) -> ctypes.c_int16:
    """Return `value` as an `int16_t`."""
    return ctypes.c_int16(_checked("i16", value, -(2**15), 2**15 - 1))


def i32(value: int) -> ctypes.c_int32:
    """Return `value` as an `int32_t`."""
    return ctypes.c_int32(_checked("i32", value, -(2**31), 2**31 - 1))


def i64(value: int) -> ctypes.c_int64:
    """Return `value` as an `int64_t`."""
    return ctypes.c_int64(_checked("i64", value, -(2**63), 2**63 - 1))


def u8(value: int) -> ctypes.c_uint8:
    """Return `value` as a `uint8_t`."""
    return ctypes.c_uint8(_checked("u8", value, 0, 2**8 - 1))


def u16(value: int) -> ctypes.c_uint16:
    """Return `value` as a `uint16_t`."""
    return ctypes.c_uint16(_checked("u16", value, 0, 2**16 - 1))


def u32(value: int) -> ctypes.c_uint32:
    """Return `value` as a `uint32_t`."""
    return ctypes.c_uint32(_checked("u32", value, 0, 2**32 - 1))


def u64(value: int) -> ctypes.c_uint64:
    """Return `value` as a `uint64_t`."""
    return ctypes.c_uint64(_checked("u64", value, 0, 2**64 - 1))


def f32(value: float) -> ctypes.c_float:
    """Return a `float`. Raises `OverflowError` when a finite value is beyond its range."""
    narrow = ctypes.c_float(value)
    if math.isinf(narrow.value) and math.isfinite(value):
        raise OverflowError(f"ops.f32: {value} is beyond the range of a 32-bit float")
    return narrow


def f64(value: float) -> ctypes.c_double:
    """Return `value` as a `double`, which a float is without being told."""
    return ctypes.c_double(value)
