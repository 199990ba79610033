"""`compile`: from a source to a binary, through memory, disk and at last the compiler.

Owns the order of these steps, single flight (one build of a request at a time, in this process and
between processes) and the frozen state. No lock is held that another request or a hit could need.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from bringup import settings
from bringup.errors import CompileError, MissingCompilerError
from bringup.jit.builder.build import Request, SourceChangedError
from bringup.jit.files.headers import Header, Searched
from bringup.jit.files.identity import file_digest
from bringup.jit.load.binary import Binary
from bringup.jit.load.prebuilt import library_key
from bringup.jit.lookup import events
from bringup.jit.lookup.lookup_or_build import (
    build_somewhere,
    find_entry,
    find_shared,
    find_without_compiler,
)
from bringup.jit.lookup.warmup import missing_kernel
from bringup.jit.source.source import Kind, Source
from bringup.jit.store.cache import Cache
from bringup.jit.store.calls import call_name, call_record, watched
from bringup.jit.store.entries import Hit
from bringup.jit.store.private import cache
from bringup.jit.target.debug import Debug
from bringup.jit.target.flags import Macro, render_flags, render_macros
from bringup.jit.target.target import find_target
from bringup.jit.target.toolchain import Toolchain, ToolchainInfo, bringup_includes, include_flags

__all__ = [
    "cache",
    "compile",
    "forget",
    "freeze",
    "frozen",
    "request_for",
    "toolchain",
    "with_compiler",
]

_NO_MACROS: Mapping[str, Macro] = MappingProxyType({})
_SOURCE_ATTEMPTS = 5
_Call: TypeAlias = tuple[Source, tuple[str, ...], str, tuple[str, ...], Debug, Path]


@dataclass
class _Known:
    """An answer in memory, with what it was built from: the headers beside the source or in folders
    of the request (the system's are left out), and where others would be found first.
    """

    binary: Binary
    toolchain: Toolchain
    source_digest: str
    headers: tuple[Header, ...]
    searched: Searched

    def holds(self, source: Source, toolchain: Toolchain) -> bool:
        """Whether source, headers and compiler are still the ones it was built with."""
        if toolchain is not self.toolchain or source.digest() != self.source_digest:
            return False
        try:
            if any(file_digest(header.path) != header.digest for header in self.headers):
                return False
        except OSError:
            return False
        searched = self.searched.renewed()
        if searched is None:
            return False
        self.searched = searched
        return os.path.exists(self.binary.path)


class _State:
    """What this process knows. A forked child starts with its own flights: nobody would finish
    the parent's.
    """

    def __init__(self) -> None:
        self.frozen = 0
        self.forget()
        self.reset_flights()

    def forget(self) -> None:
        self.known: dict[_Call, _Known] = {}
        self.recalled: dict[tuple[Path, str], Binary] = {}

    def reset_flights(self) -> None:
        self.lock = threading.Lock()
        self.flights: dict[tuple[Path, str], Future[Hit]] = {}


_state = _State()
os.register_at_fork(after_in_child=_state.reset_flights)


def forget() -> None:
    """Makes this process look at the disk again, as a new one does."""
    _state.forget()


def freeze() -> None:
    """From here on a kernel that is not in the cache is a `MissingKernelError`: nothing is
    compiled any more.
    """
    with _state.lock:
        _state.frozen += 1


def is_frozen() -> bool:
    """Whether nothing may be compiled now."""
    return _state.frozen > 0


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
        source: what to compile; a library that is built already is taken as it is.
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
    if isinstance(source, Source) and source.is_library:
        return _library(source, macros, target, flags)
    store = cache()
    request = request_without_compiler(source, macros, target, flags, debug)
    # Whoever listens wants to know the compiler.
    name = "" if events.has_listeners(events.Asked) else call_name(request)
    if name and (recalled := _recall(request, name, store)):
        return recalled
    missing: MissingCompilerError | None = None
    try:
        request = with_compiler(request, store)
    except MissingCompilerError as error:
        if settings.jit_cxx():
            raise  # a compiler was chosen, and what another one built is not what was asked for
        missing = error
    if events.has_listeners(events.Asked):
        events.emit(events.Asked(request))
    call = (source, request.macros, request.target, request.flags, request.debug, store.root)
    known = _state.known.get(call)
    if known is not None and known.holds(source, request.toolchain):
        return known.binary
    if missing is None:
        hit, digest = _resolve(request, store)
    else:
        digest = source.digest()
        try:
            hit = find_without_compiler(request, digest, store, missing)
        except MissingCompilerError as error:
            if _state.frozen:
                raise missing_kernel(request, digest, store) from error
            raise
    binary = _binary(request, hit)
    headers = watched(request, hit.headers)
    _state.known[call] = _Known(binary, request.toolchain, digest, headers, hit.searched)
    if name:
        _note(request, digest, hit, binary, name, store)
    return binary


def _library(
    source: Source, macros: Mapping[str, Macro], target: str, flags: Iterable[str]
) -> Binary:
    """A library that is there already, as a binary."""
    if macros or tuple(flags):
        raise ValueError(f"{source} is built already: macros and flags cannot change it")
    path = Path(str(source.path))
    return Binary(
        path, library_key(source), source.symbol, source.abi, "host", target, prebuilt=True
    )


def _binary(request: Request, hit: Hit) -> Binary:
    source = request.source
    return Binary(
        hit.path, hit.key, source.symbol, source.abi, source.kind, request.target, request.debug
    )


def _recall(request: Request, name: str, store: Cache) -> Binary | None:
    """What this call was answered with before, here or in another process, if that still holds."""
    known = _state.recalled.get((store.root, name))
    if known is not None:
        same = store.recall_call(name, again=True)
        if same is not None and same.key == known.key and os.path.exists(known.path):
            return known
    build = store.recall_call(name, again=False)
    hit = store.verified_hit(build) if build is not None else None
    if hit is None:
        return None
    binary = _state.recalled[store.root, name] = _binary(request, hit)
    return binary


def _note(
    request: Request, source_digest: str, hit: Hit, binary: Binary, name: str, store: Cache
) -> None:
    """Lets `_recall` find this answer."""
    if not hit.sha256 or not str(hit.path).startswith(store.layout.prefix):
        return
    record = call_record(request, source_digest, hit)
    if record is not None:
        store.note_call(name, record)
        _state.recalled[store.root, name] = binary


# Stands for the compiler where there is none.
_NO_TOOLCHAIN = Toolchain("", "", "", (), "", "", include_directories=bringup_includes())


def request_for(
    source: Source,
    macros: Mapping[str, Macro],
    target: str,
    flags: Iterable[str],
    debug: Debug | None,
    store: Cache,
) -> Request:
    """What a call of `compile` with these arguments asks for now. Raises as `compile` does."""
    return with_compiler(request_without_compiler(source, macros, target, flags, debug), store)


def request_without_compiler(
    source: Source,
    macros: Mapping[str, Macro],
    target: str,
    flags: Iterable[str],
    debug: Debug | None,
) -> Request:
    """What a call of `compile` with these arguments asks for, without the compiler, which takes
    time to look for.
    """
    if not isinstance(source, Source):
        raise TypeError(
            f"jit.compile: expected a jit.Source, got {type(source).__name__} ({source!r})"
        )
    rendered, options = render_macros(macros), render_flags(flags)
    platform = find_target(target)
    platform.check_language(source)
    if debug is None:
        debug = Debug.from_settings()
    return Request(source, rendered, platform.name, options, _NO_TOOLCHAIN, debug)


def with_compiler(request: Request, store: Cache) -> Request:
    """The request with the compiler that is there now."""
    compiler = request.platform.toolchain(store, request.source.kind)
    return replace(request, toolchain=compiler)


def find(request: Request, store: Cache) -> Hit | None:
    """The entry that answers `request`, never building one. Raises `FileNotFoundError`."""
    return find_entry(request, request.source.digest(), store)


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


def _find_or_build(request: Request, source_digest: str, store: Cache) -> Hit:
    key = request.key(source_digest)
    if hit := find_entry(request, source_digest, store):
        return hit
    if _state.frozen:
        if hit := find_shared(request, source_digest, store):
            return hit
        raise missing_kernel(request, source_digest, store)
    flight = (store.root, key)
    with _state.lock:
        running = _state.flights.get(flight)
        if running is None:
            mine = _state.flights[flight] = Future()
    if running is not None:
        try:
            return running.result()
        except CancelledError:  # whoever built it was interrupted
            return _find_or_build(request, source_digest, store)
    try:
        hit = build_somewhere(request, source_digest, store)
    except BaseException as error:
        _end_flight(flight)
        if isinstance(error, Exception):
            mine.set_exception(error)
        else:
            mine.cancel()
        raise
    _end_flight(flight)
    mine.set_result(hit)
    return hit


def _end_flight(flight: tuple[Path, str]) -> None:
    with _state.lock:
        _state.flights.pop(flight, None)


def toolchain(target: str = "cpu", *, kind: Kind = "host") -> ToolchainInfo:
    """Which compiler builds sources of this kind for `target`, or why none does.

    Args:
        target: `"cpu"`, `"sim"`, `"cuda"`, ..., or one that was registered.
        kind: "host" for code that the host runs, "device" for code that a driver starts.

    Returns:
        The compiler and its flags; without one, `problem` says why.

    Raises:
        ValueError: there is no such target.
    """
    platform = find_target(target)
    try:
        found = platform.toolchain(cache(), kind)
    except MissingCompilerError as error:
        return ToolchainInfo(target, problem=str(error))
    language = platform.main_language
    flags = (*platform.flags(found, language, Debug()), *include_flags())
    return ToolchainInfo(target, Path(found.compiler), found.version, flags, found.isa)
