"""Names, types, dtypes, layouts of a kernel's arguments; imports neither torch nor numpy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

from bringup._language._core import Layout as Layout

ArgumentType = Literal[
    "Tensor", "Tensor[]", "Tensor?[]", "int", "bool", "ScalarType", "Layout", "MemoryFormat",
    "Device", "float", "Scalar", "complex", "Generator", "str", "int[]", "bool[]", "float[]",
]  # fmt: skip

# The C type of a dtype, as a kernel that includes bringup/kernel.h names it: of those that kernels
# of torch's operators compute with, and of all.
ELEMENT_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "float64": "double", "float32": "float", "float16": "bringup::half",
        "bfloat16": "bringup::bfloat16", "int64": "int64_t", "int32": "int32_t", "int16": "int16_t",
        "int8": "int8_t", "uint8": "uint8_t", "bool": "bool",
    }
)  # fmt: skip
_FLOAT8 = {"float8_e5m2": 12, "float8_e4m3fn": 10, "float8_e5m2fnuz": 13, "float8_e4m3fnuz": 11,
           "float8_e8m0fnu": 14}  # fmt: skip
C_TYPES: Mapping[str, str] = MappingProxyType(
    {
        **ELEMENT_TYPES,
        **{f"uint{bits}": f"uint{bits}_t" for bits in (16, 32, 64)},
        **{f"complex{bits}": f"bringup_complex{bits}" for bits in (64, 128)},
        **{name: f"bringup::{name}" for name in _FLOAT8},
    }
)
# torch's dtypes in the order of its numbers (c10/core/ScalarType.h).
SCALAR_TYPES = (
    "uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64 complex128 bool "
    "qint8 quint8 qint32 bfloat16 quint4x2 quint2x4 bits1x8 bits2x4 bits4x2 bits8 bits16 "
    "float8_e5m2 float8_e4m3fn float8_e5m2fnuz float8_e4m3fnuz uint16 uint32 uint64 "
    "uint1 uint2 uint3 uint4 uint5 uint6 uint7 int1 int2 int3 int4 int5 int6 int7 "
    "float8_e8m0fnu float4_e2m1fn_x2"
)
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5, "bool": 6}
# torch's number of a dtype, DLPack's code and bits (bringup_glue_dtype says the same).
_NUMBERS: Mapping[str, tuple[int, int, int]] = {
    name: (number, _FLOAT8.get(name) or _CODES[kind[1]], int(kind[2] or 8))
    for number, name in enumerate(SCALAR_TYPES.split())
    if (kind := re.fullmatch(r"([a-z]+)(8|16|32|64|128)?(?:_e\w+)?", name))
    and (name in _FLOAT8 if "_" in name else kind[1] in _CODES)
}
_BLOCK = 16  # the sides of a block of the layout NZ


@dataclass(frozen=True)
class Argument:
    """One argument of a kernel, as the kernel ABI carries it; outputs come last.

    Attributes:
        name: how `params=`, `dtypes=`, ... call it.
        type: its schema type.
        optional: whether it may be None.
        written: whether the kernel is to write it; None where nothing says so.
    """

    name: str
    type: str
    optional: bool = False
    written: bool | None = None

    def __post_init__(self) -> None:
        if self.type not in get_args(ArgumentType):
            raise ValueError(
                f"argument {self.name!r} has type {self.type!r}, expected one of "
                f"{', '.join(get_args(ArgumentType))}"
            )


def dtype_name(dtype: object) -> str:
    """`"float16"` of `torch.float16`, `numpy.float16`, `numpy.dtype("float16")` or `"float16"`."""
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return str(name).removeprefix("torch.")


def c_type(dtype: object) -> str:
    """Return the C type of a dtype, `void` for None. Raises `ValueError` for any other."""
    if dtype is None:
        return "void"
    found = C_TYPES.get(dtype_name(dtype))
    if found is None:
        raise ValueError(
            f"{dtype}, which has no C type; a kernel takes {', '.join(C_TYPES)}: convert it"
        )
    return found


def dtype_number(dtype: object, which: str) -> int:
    """Return torch's number (`dtype`), DLPack's code, bits (`dtype_code`, `dtype_bits`), or -1."""
    numbers = _NUMBERS.get(dtype_name(dtype), (-1, -1, -1))
    return numbers[("dtype", "dtype_code", "dtype_bits").index(which)]


def strides_of(tensor: Any) -> tuple[int, ...]:
    """Return the strides of a tensor in elements."""
    if hasattr(tensor, "stride"):
        return tuple(tensor.stride())
    return tuple(stride // tensor.itemsize for stride in tensor.strides)


def address_of(tensor: Any) -> int | None:
    """Return where the elements of a tensor begin; None for one without memory."""
    if hasattr(tensor, "data_ptr"):
        return int(tensor.data_ptr()) or None
    return int(tensor.ctypes.data) if hasattr(tensor, "ctypes") else None


def layout_of(tensor: Any, allowed: Sequence[Layout]) -> Layout:
    """Return the layout of a tensor among the allowed ones; `ROW` for one that has none of them (it
    is copied) and for None. native/torch/ops/variant.cpp says the same. Returns `ROW`, `COLUMN` or
    `NZ`, by the last two dimensions of shape and strides.

    Args:
        tensor: a torch tensor, or None.
        allowed: the layouts that the kernel takes.
    """
    if tensor is None:
        return Layout.ROW
    if Layout.NZ in allowed and _is_nz(tensor):
        return Layout.NZ
    found = _plain_layout(tuple(tensor.shape), strides_of(tensor))
    return found if found in allowed else Layout.ROW


def _is_nz(tensor: Any) -> bool:
    shape = tuple(tensor.shape)
    return len(shape) >= 4 and shape[-2:] == (_BLOCK, _BLOCK) and _is_contiguous(tensor)


def _is_contiguous(tensor: Any) -> bool:
    if hasattr(tensor, "is_contiguous"):
        return bool(tensor.is_contiguous())
    return bool(tensor.flags.c_contiguous)


def _plain_layout(shape: tuple[int, ...], strides: tuple[int, ...]) -> Layout:
    if not shape or 0 in shape or shape[-1] == 1 or strides[-1] == 1:
        return Layout.ROW
    if len(shape) > 1 and (shape[-2] == 1 or strides[-2] == 1):
        return Layout.COLUMN
    return Layout.STRIDED


def signature_of(values: Mapping[str, Any]) -> tuple[Argument, ...]:
    """Return the arguments of these values; None is a tensor, 1 no float. Raises `TypeError`."""
    return tuple(
        Argument(name, _type_of(name, value), value is None) for name, value in values.items()
    )


def _type_of(name: str, value: object) -> str:
    if value is None:
        return "Tensor"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return "Tensor"
    if isinstance(value, bool):
        return "bool"
    kinds = ((int, "int"), (float, "float"), (str, "str"), (complex, "complex"))
    for kind, type_name in kinds:
        if isinstance(value, kind):
            return type_name
    if isinstance(value, (list, tuple)) and value:
        item = _type_of(name, value[0])
        if item in {"Tensor", "bool", "int", "float"}:
            return f"{item}[]"
    raise TypeError(
        f"{name}={value!r}: expected a tensor, an int, a float, a bool, a str or a list of them, "
        f"got {type(value).__name__}"
    )
