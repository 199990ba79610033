"""Keys: one digest for a record of named values."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TypeAlias

KERNEL_ABI = 1  # BRINGUP_KERNEL_ABI of kernel.h
SCHEMA = "4"

Record: TypeAlias = Mapping[str, Sequence[str]]


def key_of(record: Record) -> str:
    """Return SHA-256 over the record, every name and value prefixed with its length, in hex."""
    parts: list[bytes] = []
    for field in sorted(record):
        values = record[field]
        parts.append(b"%d:%s%d;" % (len(field), field.encode(), len(values)))
        for value in values:
            encoded = value.encode(errors="surrogateescape")
            parts.append(b"%d:%s" % (len(encoded), encoded))
    return hashlib.sha256(b"".join(parts)).hexdigest()
