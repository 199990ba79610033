"""Files of several sections, that outlive a process: each section with its version and digest.

A magic word with length and SHA-256 of the table, the sections, each at a multiple of 64 bytes, and
the table, in JSON. Nothing in it has a path, nothing is packed, and nothing is signed.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import stat
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bringup.errors import BundleError

ALIGNMENT = 64
_HEAD = struct.Struct("<8sQ32s16x")
_MAGIC = b"bringup\n"
_FORMAT = 1
_MOST_TABLE = 1 << 16  # bytes


@dataclass(frozen=True)
class Section:
    """What one section has, piece by piece, and the version of its form. A `large` one has a CRC-32
    in the place of a SHA-256: checking it takes no longer than reading the memory.
    """

    version: int
    content: Iterable[bytes | memoryview]
    large: bool = False


def write(
    path: str | os.PathLike[str],
    kind: str,
    made_for: Mapping[str, str],
    sections: Mapping[str, Section],
) -> None:
    """Write a whole file or none.

    Args:
        path: of the file; one that is there is replaced.
        kind: what it holds, in a word.
        made_for: what a reader has to have, by what it is called in messages.
        sections: by name.

    Raises:
        OSError: it cannot be written.
    """
    target = Path(path)
    draft = target.with_name(f".{target.name}.{os.urandom(8).hex()}")
    try:
        with draft.open("xb") as file:
            file.write(bytes(_HEAD.size))
            rows = {name: _written(file, section) for name, section in sections.items()}
            table = {"format": _FORMAT, "kind": kind, "made_for": made_for, "sections": rows}
            text = json.dumps(table).encode()
            file.write(text)
            file.seek(0)
            file.write(_HEAD.pack(_MAGIC, len(text), hashlib.sha256(text).digest()))
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def _written(file: Any, section: Section) -> dict[str, Any]:
    check, size = _Check(section.large), 0
    for piece in section.content:
        view = memoryview(piece).cast("B")
        check.add(view)
        size += file.write(view)
    file.write(bytes(-size % ALIGNMENT))
    large, version = section.large, section.version
    return {"version": version, "size": size, "large": large, "digest": check.digest()}


class _Check:
    def __init__(self, large: bool) -> None:
        self._hash, self._crc = None if large else hashlib.sha256(), 0

    def add(self, view: memoryview) -> None:
        if self._hash is None:
            self._crc = zlib.crc32(view, self._crc)
        else:
            self._hash.update(view)

    def digest(self) -> str:
        return f"{self._crc:08x}" if self._hash is None else self._hash.hexdigest()


def read(
    path: str | os.PathLike[str],
    kind: str,
    here: Mapping[str, str],
    versions: Mapping[str, int],
) -> dict[str, memoryview]:
    """Return the sections of a file, all of them checked.

    They are the file's pages, shared with other readers; a write goes to a copy of the
    page. The file must not change as long as one of them is there.

    Args:
        path: of the file.
        kind: what it has to hold.
        here: what this process has, of what the file was made for.
        versions: the sections that it has to have, and the versions of their forms.

    Raises:
        BundleError: it is no such file, it is damaged, or it was made for something else.
        OSError: it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size < _HEAD.size:
            raise BundleError(f"{path} is no {kind}, or a part of one")
        view = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
    finally:
        os.close(descriptor)
    table = _table(view, path, kind)
    for what, wanted in table["made_for"].items():
        if wanted != here.get(what, "none"):
            raise BundleError(
                f"{path} was made for {what} {wanted}, and here is {here.get(what, 'none')}"
            )
    found: dict[str, memoryview] = {}
    begin = _HEAD.size
    for name, row in table["sections"].items():
        if versions.get(name) != row["version"]:
            raise BundleError(
                f"{path} has a section {name!r} of version {row['version']}, which this bringup "
                "does not read"
            )
        found[name] = view[begin : begin + row["size"]]
        check = _Check(row["large"])
        check.add(found[name])
        end = begin + row["size"] + -row["size"] % ALIGNMENT
        if check.digest() != row["digest"] or any(view[begin + row["size"] : end]):
            raise BundleError(f"{path} is damaged, in its section {name!r}")
        begin = end
    if lacking := versions.keys() - found.keys():
        raise BundleError(f"{path} has no section {min(lacking)!r}")
    return found


def _table(view: memoryview, path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """Return the table, of which every field has its type, and whose sections fill the file."""
    magic, size, digest = _HEAD.unpack_from(view)
    if magic != _MAGIC or bytes(view[48 : _HEAD.size]) != bytes(16):
        raise BundleError(f"{path} is no {kind} of bringup")
    text = bytes(view[len(view) - size :]) if size <= min(_MOST_TABLE, len(view)) else b""
    if hashlib.sha256(text).digest() != digest:
        raise BundleError(f"{path} is damaged, in its table, or a part of it is missing")
    try:
        table: dict[str, Any] = json.loads(text)
        if table["format"] != _FORMAT or table["kind"] != kind:
            raise BundleError(
                f"{path} has {table['kind']!r} in format {table['format']!r}, and this bringup"
                f" reads {kind!r} in format {_FORMAT}"
            )
        rows = list(table["sections"].values())
        typed = {"version": int, "size": int, "large": bool, "digest": str}
        valid = all(type(row[key]) is of for row in rows for key, of in typed.items())
        valid = valid and all(type(one) is str for one in table["made_for"].values())
        valid = valid and all(row["size"] >= 0 for row in rows)
        filled = sum(row["size"] + -row["size"] % ALIGNMENT for row in rows) if valid else -1
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, BundleError):
            raise
        raise BundleError(f"{path} is damaged: its table is none ({error})") from error
    if filled != len(view) - _HEAD.size - size:
        raise BundleError(f"{path} is damaged: its sections do not fill it")
    return table
