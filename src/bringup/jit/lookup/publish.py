"""What was built, here or elsewhere, becomes an entry that is found."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from bringup.jit.builder.build import search_of_build
from bringup.jit.builder.header_search import HeaderSearch
from bringup.jit.builder.key import Record
from bringup.jit.builder.request import Request
from bringup.jit.files.headers import Header, Searched, portable, portable_places
from bringup.jit.store.cache import Cache
from bringup.jit.store.entries import Hit, Origin
from bringup.jit.store.portable_key import portable_key, portable_roots
from bringup.jit.target.machine import required_features

_RUN_HERE = frozenset({"cpu", "sim"})  # targets whose code is for the machine that builds it


def search_here(request: Request, headers: Sequence[str], start_ns: int) -> HeaderSearch:
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
    )
    key = request.key(source_digest)
    return store.publish(staged, key, record, files, searched, origin, facts)
