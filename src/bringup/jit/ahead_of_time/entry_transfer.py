"""A cache entry on its way from the machine that built it to the one that wants it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from bringup.errors import CompileError
from bringup.jit.builder.build import shown_names
from bringup.jit.builder.request import Request
from bringup.jit.files.headers import Header
from bringup.jit.files.identity import bytes_digest, file_time_ns
from bringup.jit.files.layout import META
from bringup.jit.lookup.publish import publish, search_here
from bringup.jit.store.cache import Cache

Shipment: TypeAlias = Mapping[str, bytes]
"""The files of an entry by name, its meta.json among them."""

_NOT_FACTS = {"key", "record", "headers", "origin", "files"}


def pack(entry: Path) -> Shipment:
    """Return the entry in this folder."""
    return {path.name: path.read_bytes() for path in entry.iterdir() if path.is_file()}


def unpack(shipment: Shipment, request: Request, store: Cache) -> None:
    """Publish an entry that was built elsewhere as the answer to `request`.

    Raises:
        CompileError: it is damaged, or was built from something else than is here.
        StoreUnwritableError: this cache cannot take it.
    """
    meta = json.loads(shipment[META])
    digest = request.source.digest()
    received = {field: tuple(values) for field, values in meta["record"].items()}
    count = len(received["headers"])
    digests = (*received["headers"], *received["inputs"])
    files = [Header(*pair, None) for pair in zip(meta["headers"], digests, strict=True)]
    found = search_here(request, meta["headers"][:count], file_time_ns())
    names = shown_names(request, found)
    expected = request.record(digest, digests[:count], digests[count:], found.answers, names)
    if received != {field: tuple(values) for field, values in expected.items()}:
        raise CompileError(f"{request.source}: the worker built something else than was asked for")
    staged = store.stage()
    try:
        for name, expected_file in meta["files"].items():
            content = shipment[name]
            if bytes_digest(content) != expected_file["sha256"]:
                raise CompileError(
                    f"{request.source}: {name} was damaged on its way from the worker"
                )
            (staged / Path(name).name).write_bytes(content)
        facts = {name: fact for name, fact in meta.items() if name not in _NOT_FACTS}
        searched = found.searched.joined(found.probed)
        publish(request, expected, files, searched, staged, store, facts)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    if store.lookup(request.key(digest)) is None:
        raise CompileError(
            f"{request.source}: the worker's headers or libraries have another content than those "
            f"here: one of {', '.join(meta['headers'])}"
        )
