"""dtypes by torch's ScalarType number (c10/core/ScalarType.h), which schemas hold as a default."""

from __future__ import annotations

import torch

__all__ = ["DTYPES", "dtype_of_number"]

_NAMES = (
    "uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64 complex128 bool "
    "qint8 quint8 qint32 bfloat16 quint4x2 quint2x4 bits1x8 bits2x4 bits4x2 bits8 bits16 "
    "float8_e5m2 float8_e4m3fn float8_e5m2fnuz float8_e4m3fnuz uint16 uint32 uint64 "
    "uint1 uint2 uint3 uint4 uint5 uint6 uint7 int1 int2 int3 int4 int5 int6 int7 "
    "float8_e8m0fnu float4_e2m1fn_x2"
)
DTYPES: dict[int, torch.dtype] = {
    number: getattr(torch, name)
    for number, name in enumerate(_NAMES.split())
    if hasattr(torch, name)
}


def dtype_of_number(number: int) -> torch.dtype:
    """The dtype with this number. Raises `KeyError` for one that this torch does not have."""
    return DTYPES[number]
