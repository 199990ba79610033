"""Thin archives, which name object files and do not have them (binutils, `ar rcT`)."""

from __future__ import annotations

import os
from collections.abc import Iterator

from bringup.jit.files.identity import read_bytes

_THIN = b"!<thin>\n"
_HEADER, _SIZE = 60, slice(48, 58)
_NAMES = b"//"  # the member with all names that are longer than a header has room for


def thin_members(path: str) -> Iterator[str]:
    """Yield the files that a thin archive names, and theirs. Raises `OSError`."""
    with open(path, "rb") as file:
        if file.read(len(_THIN)) != _THIN:
            return
    for name in _names(read_bytes(path)):
        member = os.path.join(os.path.dirname(path), os.fsdecode(name))
        yield member
        if os.path.isfile(member):
            yield from thin_members(member)


def _names(content: bytes) -> list[bytes]:
    """Return the table of names. In a thin archive only it and the index have content."""
    at = len(_THIN)
    while content[at : at + 1] == b"/":
        size, start = int(content[at:][_SIZE]), at + _HEADER
        if content[at:].startswith(_NAMES):
            return [name for name in content[start : start + size].split(b"/\n") if name.strip()]
        at = start + size + size % 2
    return []
