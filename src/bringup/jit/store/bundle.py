"""Bundles: entries in one file, for machines that have no compiler.

A zip archive, whose `bundle.json` has digests of meta.json files, which have those of their files.
All is checked before anything is taken; nothing is signed.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bringup.errors import BundleError
from bringup.jit.builder.key import key_of
from bringup.jit.files.identity import bytes_digest, read_bytes
from bringup.jit.files.layout import BINARY, LAST_USED, META
from bringup.jit.target.machine import incompatibility_reason

_FORMAT = 1
_INDEX = "bundle.json"
# What zipfile and json raise for content that is none: RuntimeError for an archive that wants a
# password or for JSON nested too deep, NotImplementedError for another version's.
_DAMAGED = (
    zipfile.BadZipFile, zlib.error, struct.error, OSError, RuntimeError, ValueError, KeyError,
    TypeError, AttributeError, EOFError,
)  # fmt: skip
_THE_SAME_FOR_EVERYBODY = (1980, 1, 1, 0, 0, 0)  # the same entries make the same bundle


@dataclass(frozen=True)
class Packed:
    """One entry on its way: its key, what its meta.json says, and its files, meta.json included."""

    key: str
    meta: Mapping[str, Any]
    files: Mapping[str, bytes]

    @property
    def incompatibility_reason(self) -> str:
        """Return why it cannot run on this machine, or ""."""
        origin = self.meta["origin"]
        return incompatibility_reason(origin["machine"], origin["requires"])

    def check(self) -> None:
        """Raise `BundleError` saying what is damaged or does not belong together."""
        named = self.meta["files"]
        if self.meta["key"] != self.key or key_of(self.meta["record"]) != self.key:
            raise BundleError(f"entry {self.key[:12]}: its meta.json belongs to another entry")
        if lacking := {"key", "machine", "requires", "headers"} - self.meta["origin"].keys():
            raise BundleError(f"entry {self.key[:12]}: {META} lacks its {sorted(lacking)[0]}")
        if BINARY not in named or {*named, META} != {*self.files}:
            raise BundleError(f"entry {self.key[:12]}: it has other files than its meta.json says")
        for name, expected in named.items():
            if Path(name).name != name or name.startswith("."):
                raise BundleError(f"entry {self.key[:12]}: {name!r} is no plain file name")
            content = self.files[name]
            if len(content) != expected["size"] or bytes_digest(content) != expected["sha256"]:
                raise BundleError(f"entry {self.key[:12]}: {name} is damaged")


def pack_entry(folder: Path) -> Packed:
    """Return the entry in a folder of a store. Raises `BundleError` when it is damaged."""
    try:
        files = {
            path.name: read_bytes(str(path)) for path in folder.iterdir() if path.name != LAST_USED
        }
        packed = Packed(folder.name, json.loads(files[META]), files)
        packed.check()
    except BundleError:
        raise
    except _DAMAGED as error:
        raise BundleError(f"entry {folder.name[:12]} cannot be read: {error!r}") from error
    return packed


def write_bundle(entries: Iterable[Packed]) -> bytes:
    """Return the bundle with these entries."""
    buffer = io.BytesIO()
    index: list[dict[str, str]] = []
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:

        def add(name: str, content: bytes) -> None:
            archive.writestr(
                zipfile.ZipInfo(name, _THE_SAME_FOR_EVERYBODY), content, zipfile.ZIP_DEFLATED
            )

        for entry in entries:
            index.append({"key": entry.key, "meta": bytes_digest(entry.files[META])})
            for name, content in sorted(entry.files.items()):
                add(f"{entry.key}/{name}", content)
        add(_INDEX, json.dumps({"format": _FORMAT, "entries": index}, indent=1).encode())
    return buffer.getvalue()


def read_bundle(content: bytes, what: str) -> list[Packed]:
    """Return a bundle's entries, checked; messages call it `what`. Raises `BundleError`."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            index = json.loads(archive.read(_INDEX))
            if index["format"] != _FORMAT:
                raise BundleError(
                    f"it has format {index['format']!r}, this bringup reads format {_FORMAT}"
                )
            return [_read_entry(archive, entry["key"], entry["meta"]) for entry in index["entries"]]
    except BundleError as error:
        raise BundleError(f"the bundle {what} is not used: {error}") from error
    except _DAMAGED as error:
        raise BundleError(
            f"{what} is no bundle, or a damaged one ({error}); expected what "
            "`bringup cache export` writes"
        ) from error


def _read_entry(archive: zipfile.ZipFile, key: str, meta_digest: str) -> Packed:
    prefix = f"{key}/"
    files = {
        name.removeprefix(prefix): archive.read(name)
        for name in archive.namelist()
        if name.startswith(prefix)
    }
    if bytes_digest(files[META]) != meta_digest:
        raise BundleError(f"entry {key[:12]}: {META} is damaged")
    packed = Packed(key, json.loads(files[META]), files)
    packed.check()
    return packed
