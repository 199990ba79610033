"""From what is asked for to the builds that answered it; a lost index costs a build."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

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
    """One build as another machine may use it."""

    key: str  # its build key
    size: int  # of the binary
    sha256: str  # of the binary
    machine: str  # the architecture it runs on
    requires: tuple[str, ...]  # features of the processor that it may use
    headers: tuple[PortableHeader, ...]  # what it was built from, by content
    imported: bool = False  # whether it came here in a bundle, on purpose


_AnyVariant = TypeVar("_AnyVariant", bound=Variant | PortableVariant)


def _variant(entry: list[Any]) -> Variant:
    key, size, sha256, headers, places = entry
    read = tuple(
        Header(path, digest, as_stamp(seen) if seen else None) for path, digest, seen in headers
    )
    return Variant(key, size, sha256, read, Searched.from_json(places))


def _portable_variant(entry: list[Any]) -> PortableVariant:
    key, size, sha256, machine, requires, headers, imported = entry
    read = tuple(PortableHeader(*header) for header in headers)
    return PortableVariant(key, size, sha256, machine, tuple(requires), read, imported)


class _Index(Generic[_AnyVariant]):
    """Which builds answer a key; `_written` and `_read` are a build as JSON has it, and back."""

    FOLDER: ClassVar[str]
    _written: Callable[[_AnyVariant], tuple[Any, ...]]
    _read: Callable[[list[Any]], _AnyVariant]

    def __init__(self, layout: StoreLayout) -> None:
        self._layout = layout
        self._prefix = f"{layout.prefix}{self.FOLDER}/"

    def variants(self, key: str) -> list[_AnyVariant]:
        """Return the latest first."""
        try:
            return list(map(self._read, json.loads(read_bytes(f"{self._prefix}{key}.json"))))
        except (OSError, ValueError, TypeError):
            return []

    def add(self, key: str, added: _AnyVariant) -> None:
        """Put a build first. Raises `StoreUnwritableError`."""
        others = [old for old in self.variants(key) if old.key != added.key]
        entries = [self._written(variant) for variant in [added, *others][:_VARIANTS]]
        content = json.dumps(entries, separators=(",", ":")).encode()
        replace_file(self._layout.folder(self.FOLDER) / f"{key}.json", content)


class RequestIndex(_Index[Variant]):
    """Which builds answer a request key."""

    FOLDER = ".manifests"
    _written = staticmethod(lambda variant: (*variant[:4], variant.searched.places))
    _read = staticmethod(_variant)


class PortableIndex(_Index[PortableVariant]):
    """Which builds answer a portable key."""

    FOLDER = ".portable"
    _written = tuple
    _read = staticmethod(_portable_variant)


def builds_named_in(path: Path) -> set[str]:
    """Return the build keys that an index file leads to; empty when it cannot be read."""
    try:
        return {str(entry[0]) for entry in json.loads(read_bytes(str(path)))}
    except (OSError, ValueError, TypeError, LookupError):
        return set()
