"""Whether two numbers are the same: what patterns, keys and updates compare numbers by."""

from __future__ import annotations

import struct
from collections.abc import Hashable
from typing import Any


def identity(value: object) -> Hashable:
    """Return what host values, nested too, are equal by where `==` says too little: -0.0, NaN."""
    if isinstance(value, (tuple, list)):
        return tuple(map(identity, value))
    if isinstance(value, (float, complex)):
        return type(value), _bits(value)
    return type(value), value


def same_number(left: object, right: object) -> bool:
    """Return whether two numbers are of one type and equal to the bit: 0.0 is not -0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, (float, complex)):
        return _bits(left) == _bits(right)
    return bool(left == right)


def _bits(number: Any) -> bytes:
    return struct.pack("dd", number.real, number.imag)
