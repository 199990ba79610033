"""What calls of `compile` were answered with: a record each, with the stamps of all that the answer
depends on, so that a new process needs neither the compiler's answers nor the manifest.

Read by `native/runtime/call_record.cpp`. Any doubt about a record costs the longer way, which looks
at contents, never a wrong kernel.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from bringup import _native
from bringup.jit.builder.key import KERNEL_ABI, SCHEMA
from bringup.jit.builder.request import Request
from bringup.jit.files.headers import Header, Searched, read_header
from bringup.jit.files.identity import Stamp, bytes_digest, quick_digest, read_bytes
from bringup.jit.files.layout import StoreLayout, replace_file
from bringup.jit.store.entries import Hit
from bringup.jit.target.flags import files_named, include_directories, library_directories
from bringup.jit.target.toolchain import boot_id

_MAGIC = "bringup call 2"
_END = "end"


class RecordedBuild(NamedTuple):
    """The build that a call was answered with: its key, and the `quick_digest` of its binary."""

    key: str
    digest: str


class CallIndex:
    """The records of a store."""

    FOLDER = ".calls"

    def __init__(self, layout: StoreLayout) -> None:
        self._layout = layout
        self._prefix = f"{layout.prefix}{self.FOLDER}/"

    def find(self, name: str, proved: str) -> RecordedBuild | None:
        """Return the build of this call if nothing changed; of `proved` less is looked at."""
        found = _native.core().recall_call(os.fsencode(self._prefix + name), proved)
        return None if found is None else RecordedBuild(*found)

    def add(self, name: str, record: bytes) -> None:
        """Keep a record. Raises `StoreUnwritableError`."""
        replace_file(self._layout.folder(self.FOLDER) / name, record)


def call_name(request: Request) -> str:
    """Return the call's name, or "" when only the compiler says what would be built."""
    if request.debug:
        return ""
    source = request.source
    found_by = request.platform.found_by(source.language)
    if found_by is None:
        return ""
    text = source.text
    what = ("file", str(source.path)) if text is None else ("text", quick_digest(text.encode()))
    asked = (
        (SCHEMA, KERNEL_ABI, what, source.language, source.symbol, source.abi, source.kind),
        (request.macros, request.target, request.flags, found_by),
    )
    return quick_digest(repr(asked).encode(errors="surrogateescape"))


def call_record(request: Request, source_digest: str, hit: Hit) -> bytes | None:
    """Return the record of a call with this answer, or None when stamps cannot stand for it."""
    compiler = request.toolchain
    passed_over = request.platform.passed_over(compiler.compiler)
    if passed_over is None or compiler.lacking:
        return None
    expected = {header.path: header.digest for header in hit.headers}
    if request.source.path is not None:
        expected[str(request.source.path)] = source_digest
    try:
        read = [read_header(path) for path in expected]
        binary = read_bytes(str(hit.path))
    except OSError:
        return None
    if bytes_digest(binary) != hit.sha256:
        return None
    stamps = {}
    for header in read:
        if header.seen is None or header.digest != expected[header.path]:
            return None
        stamps[header.path] = header.seen
    every_call = dict(compiler.tools)
    for path in (*(header.path for header in watched(request, read)), str(request.source.path)):
        if path in stamps:
            every_call[path] = stamps[path]
    looked = hit.searched
    searched = Searched.of(looked.files(present=False), looked.files(present=True))
    earlier = Searched.of(passed_over)
    if not (searched.holds() and earlier.holds()):
        return None
    build = RecordedBuild(hit.key, quick_digest(binary))
    once = {**dict(compiler.parts), **stamps}
    return _written(build, every_call, once, searched, earlier)


def watched(request: Request, headers: Iterable[Header]) -> tuple[Header, ...]:
    """Return the headers beside the source, in the request's folders or named by its flags."""
    folders = (
        request.source.directory,
        *request.toolchain.include_directories,
        *include_directories(request.flags),
        *library_directories(request.flags),
    )
    prefixes = tuple(os.path.join(folder, "") for folder in folders if folder)
    named = files_named(request.flags)
    return tuple(
        header for header in headers if header.path.startswith(prefixes) or header.path in named
    )


def _written(
    build: RecordedBuild,
    every_call: dict[str, Stamp],
    once: dict[str, Stamp],
    searched: Searched,
    earlier: Searched,
) -> bytes:
    files = {**every_call, **once}
    places = searched.joined(earlier).places
    numbers = (len(files), len(every_call), len(places), len(searched.places))
    fields = [_MAGIC, build.key, build.digest, boot_id(), *map(str, numbers)]
    for path, seen in files.items():
        fields += [path, _stamp_text(seen)]
    for place in places:
        names = place.listed()
        seen_text = "" if place.seen is None else _stamp_text(place.seen)
        fields += [place.folder, seen_text, str(len(names)), *names]
    return b"".join(os.fsencode(field) + b"\0" for field in (*fields, _END))


def _stamp_text(seen: Stamp) -> str:
    return " ".join(map(str, seen))


def builds_named_in(path: Path) -> set[str]:
    """Return the build key that a record leads to; empty when it cannot be read."""
    try:
        return {read_bytes(str(path)).split(b"\0", 2)[1].decode()}
    except (OSError, ValueError, LookupError):
        return set()
