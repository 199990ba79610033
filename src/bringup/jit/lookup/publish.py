"""What was built, here or elsewhere, becomes an entry that is found."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bringup.jit.builder.build import search_of_build, shown_names
from bringup.jit.builder.header_search import HeaderSearch
from bringup.jit.builder.key import Record, key_of
from bringup.jit.builder.request import Request
from bringup.jit.files.headers import Header, Searched, portable, portable_places
from bringup.jit.files.identity import file_time_ns
from bringup.jit.files.layout import write_durably
from bringup.jit.store.bundle import Packed
from bringup.jit.store.cache import Cache
from bringup.jit.store.entries import Hit, Origin
from bringup.jit.store.portable_key import portable_key, portable_roots
from bringup.jit.target.machine import required_features

_RUN_HERE = frozenset({"cpu", "sim"})  # targets whose code is for the machine that builds it


def _search_here(request: Request, headers: Sequence[str], start_ns: int) -> HeaderSearch:
    """Return what a build of this request would find here."""
    source = request.source
    if source.path is not None:
        return search_of_build(request, str(source.path), headers, start_ns)
    with tempfile.TemporaryDirectory(prefix="bringup-") as folder:
        file = Path(folder, source.file_name)
        file.write_bytes(source.content())
        return search_of_build(request, str(file), headers, start_ns)


def publish(
    request: Request,
    record: Record,
    files: Sequence[Header],
    searched: Searched,
    staged: Path,
    store: Cache,
    facts: Mapping[str, object],
) -> Hit:
    """Make what was built for a request, in the folder `staged` from `files` and with a key
    `record`, an entry that is found by it, and by others without a compiler. `facts`: what else
    meta.json says. Raises `StoreUnwritableError`.
    """
    compiler = request.toolchain
    roots = portable_roots(request)
    (source_digest,) = record["source"]
    runs_here = request.target.partition(":")[0] in _RUN_HERE
    origin = Origin(
        key=portable_key(request, source_digest),
        machine=compiler.machine.partition("-")[0] if runs_here else "",
        requires=required_features(compiler.isa) if runs_here else (),
        headers=(*(portable(file, roots) for file in files), *portable_places(searched, roots)),
        also=tuple(
            portable_key(replace(request, target=target), source_digest)
            for target in request.platform.covered()
        ),
    )
    key = request.key(source_digest)
    return store.publish(staged, key, record, files, searched, origin, facts)


def publish_from_elsewhere(
    request: Request, source_digest: str, packed: Packed, files: Sequence[Header], store: Cache
) -> Hit | None:
    """Publish an entry built on another machine from `files`; None where it is no answer."""
    count = len(packed.meta["record"]["headers"])
    found = _search_here(request, [file.path for file in files[:count]], file_time_ns())
    digests = [file.digest for file in files]
    names = shown_names(request, found)
    record = request.record(source_digest, digests[:count], digests[count:], found.answers, names)
    if key_of(record) != packed.key:
        return None
    facts = {name: packed.meta[name] for name in ("name", "command", "compiler", "seconds")}
    staged = store.stage()
    try:
        for name in packed.meta["files"]:
            write_durably(staged / name, packed.files[name])
        searched = found.searched.joined(found.probed)
        return publish(request, record, files, searched, staged, store, facts)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
