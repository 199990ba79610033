"""A kernel that is nowhere yet: built once among all processes, and published."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator

from bringup import settings
from bringup._locks import Owner
from bringup.errors import CompileError
from bringup.jit.builder.build import build
from bringup.jit.builder.request import Request
from bringup.jit.files.identity import file_time_ns
from bringup.jit.files.layout import StoreUnwritableError, translate_disk_full
from bringup.jit.files.locks import build_lock
from bringup.jit.lookup import (
    events,
    progress,  # noqa: F401 - it shows what is emitted here
)
from bringup.jit.lookup.lookups import Question, When, first_answer
from bringup.jit.lookup.publish import publish
from bringup.jit.lookup.sharing import share
from bringup.jit.store.active_cache import private_cache, warn_private
from bringup.jit.store.cache import Cache
from bringup.jit.store.entries import Hit
from bringup.jit.store.failures import Failures

_log = settings.logger("jit")


def lock_seconds() -> float:
    """Return how long to wait for another process, longer than a compiler may run."""
    return settings.jit_timeout() + 30


def build_somewhere(request: Request, source_digest: str, store: Cache) -> Hit:
    """Build into the store or else a private cache. Raises `CompileError`, `SourceChangedError`."""
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
    """Build under the lock of all processes; take another's result or failure."""
    question = Question(request, store, digest=source_digest)
    key = question.key

    def waiting(seconds: float, owner: Owner) -> None:
        events.emit(events.Waiting(request, key, seconds, *owner))

    if hit := first_answer(When.BUILDING, question):
        return hit
    with build_lock(store.layout, key, lock_seconds(), waiting) as alone:
        if not alone:
            _log.warning("another process builds %s for too long: built here", request.source)
        if hit := first_answer(When.ALONE, question):
            return hit
        with _announced(request, key):
            hit = _build_and_publish(request, source_digest, key, store)
    share(request, source_digest, hit)
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
            source_digest,
            [header.digest for header in built.headers],
            [given.digest for given in built.inputs],
            built.answers,
            built.names,
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
