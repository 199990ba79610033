"""Fields of protobuf messages that the installed onnx does not know: they are kept as they are."""

from __future__ import annotations

import struct
from typing import Any

from google.protobuf.unknown_fields import UnknownFieldSet

_VARINT, _FIXED64, _BYTES, _, _END, _FIXED32 = range(6)  # wire types; the fourth begins a group


def add_unknown_fields(target: Any, source: Any) -> None:
    """Give `target` the fields of `source`, of the same kind, that its class does not know."""
    fields = UnknownFieldSet(source)
    if len(fields):
        target.MergeFromString(_encoded(fields))


def _encoded(fields: Any) -> bytes:
    made = b""
    for field in fields:
        made += _varint(field.field_number << 3 | field.wire_type)
        if field.wire_type == _VARINT:
            made += _varint(field.data)
        elif field.wire_type == _FIXED64:
            made += struct.pack("<Q", field.data)
        elif field.wire_type == _FIXED32:
            made += struct.pack("<I", field.data)
        elif field.wire_type == _BYTES:
            made += _varint(len(field.data)) + field.data
        else:
            made += _encoded(field.data) + _varint(field.field_number << 3 | _END)
    return made


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)
