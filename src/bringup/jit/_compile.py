"""`compile`: from a source to a binary, through memory, disk and at last the compiler.

Owns the order of these steps, single flight (one build of a request at a time, in this process and
between processes) and the frozen state. No lock is held that another request or a hit could need.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache as memoised
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from bringup import settings
from bringup.errors import CompileError, MissingCompilerError
from bringup.jit import _events
from bringup.jit._binary import Binary
from bringup.jit._build import COMPILE_SECONDS, Request, SourceChangedError, build
from bringup.jit._cache import Cache, Header, Hit, StoreUnwritableError
from bringup.jit._debug import Debug
from bringup.jit._files import file_digest
from bringup.jit._key import (
    Macro,
    files_named,
    include_directories,
    library_directories,
    render_flags,
    render_macros,
)
from bringup.jit._source import Kind, Source
from bringup.jit._target import find_target
from bringup.jit._toolchain import Toolchain, ToolchainInfo, include_flags

__all__ = ["cache", "compile", "freeze", "frozen", "toolchain"]

_NO_MACROS: Mapping[str, Macro] = MappingProxyType({})
_SOURCE_ATTEMPTS = 5
# A holder of the lock builds for at most COMPILE_SECONDS an attempt. Whoever waits longer builds
# for himself: two builds of one request are a waste, not an error.
_LOCK_SECONDS = COMPILE_SECONDS + 30

_log = settings.logger("jit")

_Call: TypeAlias = tuple[Source, tuple[str, ...], str, tuple[str, ...], Debug, Path]


@dataclass(frozen=True)
class _Known:
    """An answer in memory, with what it was built from."""

    binary: Binary
    toolchain: Toolchain
    source_digest: str
    headers: tuple[
        Header, ...
    ]  # those beside the source or in include directories; the system's are left out

    def holds(self, source: Source, toolchain: Toolchain) -> bool:
        """Whether source, headers and compiler are still the ones it was built with."""
        if toolchain is not self.toolchain or source.digest() != self.source_digest:
            return False
        try:
            if any(file_digest(header.path) != header.digest for header in self.headers):
                return False
        except OSError:
            return False
        return os.path.exists(self.binary.path)


class _State:
    """What this process knows. A forked child starts with its own flights: nobody would finish
    the parent's.
    """

    def __init__(self) -> None:
        self.known: dict[_Call, _Known] = {}
        self.frozen = 0
        self.reset_flights()

    def reset_flights(self) -> None:
        self.lock = threading.Lock()
        self.flights: dict[tuple[Path, str], Future[Hit]] = {}


_state = _State()
os.register_at_fork(after_in_child=_state.reset_flights)


@memoised
def _private_cache() -> Cache:
    """A cache for this process alone, gone when it ends."""
    owner = os.getpid()
    root = Path(tempfile.mkdtemp(prefix="bringup-"))

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(root, ignore_errors=True)

    atexit.register(remove)
    return Cache(root)


os.register_at_fork(after_in_child=_private_cache.cache_clear)


@memoised
def _warn_private(reason: str) -> None:
    _log.warning(
        "the kernel cache cannot be used: %s. Kernels built now are kept in a private temporary "
        "folder until this process ends; set BRINGUP_CACHE_DIR to a folder of your own",
        reason,
    )


@memoised
def _cache_at(root: Path) -> Cache:
    return Cache(root)


def cache() -> Cache:
    """The kernel cache in use: the one of `BRINGUP_CACHE_DIR`, or a private one when others may
    write that.
    """
    found = _cache_at(settings.cache_dir())
    if reason := found.distrust():
        _warn_private(reason)
        return _private_cache()
    return found


def freeze() -> None:
    """From here on a kernel that is not in the cache is a `MissingKernelError`: nothing is
    compiled any more.
    """
    with _state.lock:
        _state.frozen += 1


@contextlib.contextmanager
def frozen() -> Iterator[None]:
    """Within, in every thread, a kernel that is not in the cache is a `MissingKernelError`."""
    freeze()
    try:
        yield
    finally:
        with _state.lock:
            _state.frozen -= 1


def compile(  # noqa: A001 - the verb of the field; used as jit.compile
    source: Source,
    *,
    macros: Mapping[str, Macro] = _NO_MACROS,
    target: str = "cpu",
    flags: Iterable[str] = (),
    debug: Debug | None = None,
) -> Binary:
    """The binary of `source` for `target`: from memory, from the cache on disk, or built now.

    Args:
        source: what to compile.
        macros: preprocessor macros, sorted by name before use; bool is 1 or 0, a str is a type, a
            name or an expression.
        target: `"cpu"`, `"sim"` for device code of the simulated NPU, `"cuda"`, `"aarch64"`, one
            of `register_target`, or a variant like `"cuda:sm_90"`, `"aarch64:armv8.2-a"`.
        flags: more compiler options, each joined with its value, in order.
        debug: what to add for somebody who looks for a mistake; None does as `BRINGUP_JIT_DEBUG`
            says. A build of its own in the cache.

    Raises:
        CompileError: the compiler refused the source; the message has the first diagnostic.
        MissingCompilerError: there is no compiler.
        MissingKernelError: it would have to be built, and compiling is frozen.
        FileNotFoundError: the source's file does not exist.
        TypeError, ValueError: a macro, a flag or the target cannot be what it says, or the target
            does not build what the source is written in.
    """
    store = cache()
    request = request_for(source, macros, target, flags, debug, store)
    if _events.is_heard(_events.Asked):
        _events.emit(_events.Asked(request))
    call = (source, request.macros, request.target, request.flags, request.debug, store.root)
    known = _state.known.get(call)
    if known is not None and known.holds(source, request.toolchain):
        return known.binary
    hit, digest = _resolve(request, store)
    binary = Binary(
        hit.path, hit.key, source.symbol, source.abi, source.kind, request.target, request.debug
    )
    _state.known[call] = _Known(binary, request.toolchain, digest, _watched(request, hit.headers))
    return binary


def request_for(
    source: Source,
    macros: Mapping[str, Macro],
    target: str,
    flags: Iterable[str],
    debug: Debug | None,
    store: Cache,
) -> Request:
    """What a call of `compile` with these arguments asks for now. Raises as `compile` does."""
    if not isinstance(source, Source):
        raise TypeError(
            f"jit.compile: expected a jit.Source, got {type(source).__name__} ({source!r})"
        )
    rendered, options = render_macros(macros), render_flags(flags)
    platform = find_target(target)
    platform.check_language(source)
    if debug is None:
        debug = Debug.from_settings()
    compiler = platform.toolchain(store, source.kind)
    return Request(source, rendered, platform.name, options, compiler, debug)


def find(request: Request, store: Cache) -> Hit | None:
    """The entry that answers `request`, never building one. Raises `FileNotFoundError`."""
    return _lookup(store, request.key(request.source.digest()))


def _watched(request: Request, headers: Iterable[Header]) -> tuple[Header, ...]:
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


def _resolve(request: Request, store: Cache) -> tuple[Hit, str]:
    """The hit, and the digest of the source that it was built from."""
    for _ in range(_SOURCE_ATTEMPTS):
        digest = request.source.digest()
        try:
            return _find_or_build(request, digest, store), digest
        except SourceChangedError:
            continue
    raise CompileError(
        f"{request.source}: it kept changing while it was compiled; try again when it is written"
    )


def _lookup(store: Cache, key: str) -> Hit | None:
    if hit := store.lookup(key):
        return hit
    # Something may have been built privately because this cache could not take it.
    return _private_cache().lookup(key) if _private_cache.cache_info().currsize else None


def _find_or_build(request: Request, source_digest: str, store: Cache) -> Hit:
    key = request.key(source_digest)
    if hit := _lookup(store, key):
        return hit
    if _state.frozen:
        from bringup.jit._warmup import missing_kernel

        raise missing_kernel(request, source_digest, store)
    flight = (store.root, key)
    with _state.lock:
        running = _state.flights.get(flight)
        if running is None:
            mine = _state.flights[flight] = Future()
    if running is not None:
        return running.result()
    try:
        hit = _build_somewhere(request, source_digest, store)
    except BaseException as error:
        mine.set_exception(error)
        raise
    else:
        mine.set_result(hit)
        return hit
    finally:
        with _state.lock:
            _state.flights.pop(flight, None)


def _build_somewhere(request: Request, source_digest: str, store: Cache) -> Hit:
    try:
        return _build_once(request, source_digest, store)
    except StoreUnwritableError as error:
        _warn_private(str(error))
    try:
        return _build_once(request, source_digest, _private_cache())
    except StoreUnwritableError as error:
        raise CompileError(
            f"{request.source}: there is no folder to build it in: {error}. Set BRINGUP_CACHE_DIR "
            "to a folder of your own with free space"
        ) from error


def _build_once(request: Request, source_digest: str, store: Cache) -> Hit:
    """Builds while no other process builds the same; what another one built meanwhile is taken."""
    from filelock import FileLock, Timeout  # costs milliseconds, and a hit never needs it

    key = request.key(source_digest)
    lock = FileLock(store.folder(".locks") / f"{key}.lock", timeout=_LOCK_SECONDS)
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(lock)
        except Timeout:
            _log.warning("another process builds %s for too long: built here", request.source)
        return store.lookup(key) or _build_and_publish(request, source_digest, store)


@contextlib.contextmanager
def _announced(request: Request, key: str) -> Iterator[None]:
    start = time.perf_counter()
    _events.emit(_events.CompileStarted(request, key))
    try:
        yield
    except BaseException as error:
        _events.emit(_events.CompileFailed(request, key, error))
        raise
    _events.emit(_events.CompileFinished(request, key, time.perf_counter() - start))


def _build_and_publish(request: Request, source_digest: str, store: Cache) -> Hit:
    key = request.key(source_digest)
    with _announced(request, key):
        return _publish_build(request, source_digest, key, store)


def _publish_build(request: Request, source_digest: str, key: str, store: Cache) -> Hit:
    staged = store.stage()
    try:
        built = build(request, source_digest, staged, store.folder(".failed") / f"{key}.log")
        record = request.record(source_digest, built.headers, built.inputs)
        facts = {
            "name": request.source.name,
            "command": built.command,
            "compiler": request.toolchain.version,
            "seconds": round(built.seconds, 4),
        }
        return store.publish(staged, key, record, (*built.headers, *built.inputs), facts)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def toolchain(target: str = "cpu", *, kind: Kind = "host") -> ToolchainInfo:
    """Which compiler builds sources of this kind for `target`, or why none does. Raises
    `ValueError` for an unknown target.
    """
    platform = find_target(target)
    try:
        found = platform.toolchain(cache(), kind)
    except MissingCompilerError as error:
        return ToolchainInfo(target, problem=str(error))
    language = platform.main_language
    flags = (*platform.flags(found, language, Debug()), *include_flags())
    return ToolchainInfo(target, Path(found.compiler), found.version, flags, found.isa)
