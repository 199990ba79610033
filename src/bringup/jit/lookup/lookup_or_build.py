"""From a request to an entry: the indexes, the shared tier, another process's build, and at last
the compiler.

Owns the order of these steps. Single flight between processes is in `locks`, what failed before in
`failures`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bringup import settings
from bringup._locks import Owner
from bringup.errors import BundleError, CompileError, MissingCompilerError
from bringup.jit.builder.build import Request, build, lookups_of_build, shown_names
from bringup.jit.builder.key import Record, key_of
from bringup.jit.builder.search import Lookups
from bringup.jit.files.headers import (
    Header,
    PortableHeader,
    Searched,
    portable,
    portable_places,
)
from bringup.jit.files.identity import file_time_ns
from bringup.jit.files.layout import StoreUnwritableError, translate_disk_full, write_durably
from bringup.jit.files.locks import build_lock
from bringup.jit.lookup import events
from bringup.jit.store.bundle import pack_entry
from bringup.jit.store.cache import Cache
from bringup.jit.store.entries import Hit, Origin
from bringup.jit.store.failures import Failures
from bringup.jit.store.portable import portable_key, portable_roots
from bringup.jit.store.private import made_private_cache, private_cache, warn_private
from bringup.jit.store.tier import tier
from bringup.jit.target.machine import required_features

__all__ = [
    "build_somewhere",
    "find_entry",
    "find_shared",
    "find_without_compiler",
    "lock_seconds",
    "lookups_here",
    "publish",
]

_RUN_HERE = frozenset({"cpu", "sim"})  # targets whose code is for the machine that builds it

_log = settings.logger("jit")


def lock_seconds() -> float:
    """How long to wait for another process: its compiler is stopped earlier. Whoever waits longer
    builds for himself: two builds of one request are a waste, not an error.
    """
    return settings.jit_timeout() + 30


def find_entry(request: Request, source_digest: str, store: Cache) -> Hit | None:
    """The entry on disk that answers the request, or None."""
    key = request.key(source_digest)
    if hit := store.lookup(key):
        return hit
    # Something may have been built privately because this cache could not take it.
    private = made_private_cache()
    if private is not None and (hit := private.lookup(key)):
        return hit
    imported, _ = store.lookup_portable(
        portable_key(request, source_digest), portable_roots(request), compiler_is_missing=False
    )
    return imported


def find_without_compiler(
    request: Request, source_digest: str, store: Cache, missing: MissingCompilerError
) -> Hit:
    """The entry that was built before, here or elsewhere, for this source, these macros and flags.

    Raises `MissingCompilerError`, saying why the entries that come near do not do.
    """
    hit, refused = store.lookup_portable(
        portable_key(request, source_digest), portable_roots(request), compiler_is_missing=True
    )
    if hit is not None:
        return hit
    reasons = "".join(f"\nThe cache has a build of it, but {reason}." for reason in refused)
    raise MissingCompilerError(
        f"{request.source}: {missing}\nThe cache at {store.root} has no build of it that needs no "
        f"compiler; bring one with `bringup cache import`.{reasons}"
    ) from missing


def _shared_key(request: Request, source_digest: str) -> str:
    """Names what was asked for, of this compiler, on every machine."""
    fingerprint = request.toolchain.fingerprint
    return key_of({"asked": (portable_key(request, source_digest),), "compiler": (fingerprint,)})


def find_shared(request: Request, source_digest: str, store: Cache) -> Hit | None:
    """The entry that another machine has built with the same compiler from the same files, brought
    here from the shared tier; None when there is none.
    """
    shared = tier()
    packed = shared.fetch(_shared_key(request, source_digest)) if shared else None
    if packed is None:
        return None
    roots = portable_roots(request)
    files = [PortableHeader(*header) for header in packed.meta["origin"]["headers"]]
    if not all(header.holds(roots, system=True) for header in files):
        return None
    folders = dict(roots)
    read = [
        Header(os.path.join(folders.get(file.root, ""), file.path), file.digest, None)
        for file in files
        if not file.is_place
    ]
    count = len(packed.meta["record"]["headers"])
    start_ns = file_time_ns()
    try:
        found = lookups_here(request, [header.path for header in read[:count]], start_ns)
    except (StoreUnwritableError, OSError):
        return None
    record = request.record(
        source_digest, read[:count], read[count:], found.answers, shown_names(request, found)
    )
    if key_of(record) != packed.key:
        return None
    facts = {name: packed.meta[name] for name in ("name", "command", "compiler", "seconds")}
    staged = None
    try:
        staged = store.stage()
        for name in packed.meta["files"]:
            write_durably(staged / name, packed.files[name])
        searched = found.searched.joined(found.probed)
        return publish(request, record, read, searched, staged, store, facts)
    except (StoreUnwritableError, OSError) as error:
        _log.debug("the shared kernel %s cannot be kept: %s", packed.key, error)
        return None
    finally:
        if staged is not None:
            shutil.rmtree(staged, ignore_errors=True)


def lookups_here(request: Request, headers: Sequence[str], start_ns: int) -> Lookups:
    """What a build of this request would find here."""
    source = request.source
    if source.path is not None:
        return lookups_of_build(request, str(source.path), headers, start_ns)
    with tempfile.TemporaryDirectory(prefix="bringup-") as folder:
        file = Path(folder, source.file_name)
        file.write_bytes(source.content())
        return lookups_of_build(request, str(file), headers, start_ns)


def _share(request: Request, source_digest: str, hit: Hit) -> None:
    shared = tier()
    if shared is not None:
        try:
            shared.send(_shared_key(request, source_digest), pack_entry(hit.path.parent))
        except BundleError as error:
            _log.debug("%s is not shared: %s", hit.key, error)


def build_somewhere(request: Request, source_digest: str, store: Cache) -> Hit:
    """Builds into the store, or into a private cache where that is not possible.

    Raises `CompileError`, and `SourceChangedError` when the source was changed meanwhile.
    """
    try:
        return _build_once(request, source_digest, store)
    except StoreUnwritableError as error:
        warn_private(str(error))
    try:
        return _build_once(request, source_digest, private_cache())
    except StoreUnwritableError as error:
        raise CompileError(
            f"{request.source}: there is no folder to build it in: {error}. Set BRINGUP_CACHE_DIR "
            "to a folder of your own with free space"
        ) from error


def _build_once(request: Request, source_digest: str, store: Cache) -> Hit:
    """Builds while no other process builds the same; what another one built meanwhile is taken,
    and so is its failure.
    """
    key = request.key(source_digest)
    failures = Failures(store.layout)

    def waiting(seconds: float, owner: Owner) -> None:
        events.emit(events.Waiting(request, key, seconds, *owner))

    if failed := failures.find(request, key):
        raise failed
    with build_lock(store.layout, key, lock_seconds(), waiting) as alone:
        if not alone:
            _log.warning("another process builds %s for too long: built here", request.source)
        if hit := store.lookup(key):
            return hit
        if failed := failures.find(request, key):
            raise failed
        if hit := find_shared(request, source_digest, store):
            return hit
        with _announced(request, key):
            hit = _build_and_publish(request, source_digest, key, store)
    _share(request, source_digest, hit)
    store.make_room(hit.key)
    return hit


@contextlib.contextmanager
def _announced(request: Request, key: str) -> Iterator[None]:
    start = time.perf_counter()
    events.emit(events.CompileStarted(request, key))
    try:
        yield
    except BaseException as error:
        events.emit(events.CompileFailed(request, key, error))
        raise
    events.emit(events.CompileFinished(request, key, time.perf_counter() - start))


def _build_and_publish(request: Request, source_digest: str, key: str, store: Cache) -> Hit:
    staged, start_ns = store.stage(), file_time_ns()
    failures = Failures(store.layout)
    try:
        try:
            with translate_disk_full():
                built = build(request, source_digest, staged, failures.log_path(key))
        except CompileError as error:
            failures.keep(request, key, error, staged, start_ns)
            raise

        headers = (*built.headers, *built.inputs)
        record = request.record(
            source_digest, built.headers, built.inputs, built.answers, built.names
        )
        facts = {
            "name": request.source.name,
            "command": built.command,
            "compiler": request.toolchain.version,
            "seconds": round(built.seconds, 4),
        }
        try:
            return publish(request, record, headers, built.searched, staged, store, facts)
        except StoreUnwritableError as error:
            warn_private(str(error))
        # What was built is not built again.
        private = private_cache()
        adopted = private.adopt(staged)
        return publish(request, record, headers, built.searched, adopted, private, facts)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def publish(
    request: Request,
    record: Record,
    files: Sequence[Header],
    searched: Searched,
    staged: Path,
    store: Cache,
    facts: Mapping[str, object],
) -> Hit:
    """Makes what was built for a request an entry that is found by it, and by others without a
    compiler.

    Args:
        request: what was asked for.
        record: the key record of the build.
        files: the headers and other files that it read.
        searched: where else it looked.
        staged: the folder with what was built.
        store: where it goes.
        facts: what else meta.json is to say.

    Raises `StoreUnwritableError`.
    """
    compiler = request.toolchain
    roots = portable_roots(request)
    (source_digest,) = record["source"]
    runs_here = request.target.partition(":")[0] in _RUN_HERE
    origin = Origin(
        key=portable_key(request, source_digest),
        machine=compiler.machine.partition("-")[0] if runs_here else "",
        requires=required_features(compiler.isa) if runs_here else (),
        headers=(
            *(portable(file, roots) for file in files),
            *portable_places(searched, roots),
        ),
    )
    key = request.key(source_digest)
    return store.publish(staged, key, record, files, searched, origin, facts)
