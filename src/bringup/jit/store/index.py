"""The indexes of a store: from what is asked for to the builds that answered it.

`RequestIndex` answers where the compiler is known: the compiler is part of the question.
`PortableIndex` answers by source, macros, flags and target alone, for machines without a compiler
and for builds that came from elsewhere. Both are only indexes: a lost or damaged one costs a build.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from bringup.jit.files.headers import Header, PortableHeader, Searched, unchanged
from bringup.jit.files.identity import as_stamp, read_bytes
from bringup.jit.files.layout import StoreLayout, replace_file

_VARIANTS = 8


class Variant(NamedTuple):
    """One build of a request: its key, what its binary has to be, and the headers it read."""

    key: str
    size: int
    sha256: str
    headers: tuple[Header, ...]
    searched: Searched

    def holds(self) -> bool:
        """Return whether the compiler would read the same headers again."""
        return all(map(unchanged, self.headers)) and self.searched.holds()


class PortableVariant(NamedTuple):
    """One build as another machine may use it.

    Attributes:
        key: its build key.
        size: of the binary.
        sha256: of the binary.
        machine: the architecture it runs on.
        requires: features of the processor that it may use.
        headers: what it was built from, by content.
        imported: whether it came here in a bundle, on purpose.
    """

    key: str
    size: int
    sha256: str
    machine: str
    requires: tuple[str, ...]
    headers: tuple[PortableHeader, ...]
    imported: bool = False


def _variant(entry: list) -> Variant:  # type: ignore[type-arg]  # as JSON has it
    key, size, sha256, headers, places = entry
    read = tuple(
        Header(path, digest, as_stamp(seen) if seen else None) for path, digest, seen in headers
    )
    return Variant(key, size, sha256, read, Searched.from_json(places))


def portable_variant(entry: list) -> PortableVariant:  # type: ignore[type-arg]  # as JSON has it
    """Return a variant as JSON has it. Raises `ValueError` or `TypeError` when it is none."""
    key, size, sha256, machine, requires, headers, imported = entry
    read = tuple(PortableHeader(*header) for header in headers)
    return PortableVariant(key, size, sha256, machine, tuple(requires), read, imported)


class RequestIndex:
    """Which builds answer a request key."""

    FOLDER = ".manifests"

    def __init__(self, layout: StoreLayout) -> None:
        self._layout = layout
        self._prefix = f"{layout.prefix}{self.FOLDER}/"

    def variants(self, request_key: str) -> list[Variant]:
        """Return the latest first."""
        try:
            return list(map(_variant, json.loads(read_bytes(f"{self._prefix}{request_key}.json"))))
        except (OSError, ValueError, TypeError):
            return []

    def add(self, request_key: str, added: Variant) -> None:
        """Put a build first. Raises `StoreUnwritableError`."""
        others = [old for old in self.variants(request_key) if old.key != added.key]
        entries = [(*v[:4], v.searched.places) for v in [added, *others][:_VARIANTS]]
        content = json.dumps(entries, separators=(",", ":")).encode()
        replace_file(self._layout.folder(self.FOLDER) / f"{request_key}.json", content)


class PortableIndex:
    """Which builds answer a portable key."""

    FOLDER = ".portable"

    def __init__(self, layout: StoreLayout) -> None:
        self._layout = layout

    def variants(self, portable_key: str) -> list[PortableVariant]:
        """Return the latest first."""
        path = os.path.join(self._layout.prefix, self.FOLDER, f"{portable_key}.json")
        try:
            return list(map(portable_variant, json.loads(read_bytes(path))))
        except (OSError, ValueError, TypeError):
            return []

    def add(self, portable_key: str, added: PortableVariant) -> None:
        """Put a build first. Raises `StoreUnwritableError`."""
        others = [old for old in self.variants(portable_key) if old.key != added.key]
        content = json.dumps([added, *others][:_VARIANTS], separators=(",", ":")).encode()
        replace_file(self._layout.folder(self.FOLDER) / f"{portable_key}.json", content)


def builds_named_in(path: Path) -> set[str]:
    """Return the build keys that an index file leads to; empty when it cannot be read."""
    try:
        return {str(entry[0]) for entry in json.loads(read_bytes(str(path)))}
    except (OSError, ValueError, TypeError, LookupError):
        return set()
