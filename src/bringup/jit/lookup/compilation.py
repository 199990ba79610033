"""`compile`, single flight between threads, and the frozen state. No hit waits for a lock."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from bringup import settings
from bringup.errors import CompileError, MissingCompilerError, MissingKernelError
from bringup.jit.builder.request import Request, SourceChangedError
from bringup.jit.load.binary import Binary
from bringup.jit.load.prebuilt import library_key
from bringup.jit.lookup import events
from bringup.jit.lookup.lookups import Question, When, first_answer, forget_proved
from bringup.jit.source.source import Kind, Source
from bringup.jit.store.active_cache import cache as cache
from bringup.jit.store.cache import Cache
from bringup.jit.store.call_records import call_name, call_record
from bringup.jit.store.entries import Hit
from bringup.jit.target.debug import Debug
from bringup.jit.target.flags import Macro, render_flags, render_macros
from bringup.jit.target.target import find_target
from bringup.jit.target.toolchain import Toolchain, ToolchainInfo, bringup_includes, include_flags

_NO_MACROS: Mapping[str, Macro] = MappingProxyType({})
_SOURCE_ATTEMPTS = 5


class _State:
    """This process's state; a forked child gets flights of its own."""

    def __init__(self) -> None:
        self.frozen = 0
        self.binaries: dict[str, Binary] = {}  # by path
        self.reset_flights()

    def reset_flights(self) -> None:
        self.lock = threading.Lock()
        self.flights: dict[tuple[Path, str], Future[Hit]] = {}


_state = _State()
os.register_at_fork(after_in_child=_state.reset_flights)


def forget() -> None:
    """Make this process look at the disk again, as a new one does."""
    forget_proved()
    _state.binaries.clear()


def freeze() -> None:
    """Compile nothing from now on: a kernel that is not in the cache is a `MissingKernelError`."""
    with _state.lock:
        _state.frozen += 1


def is_frozen() -> bool:
    return _state.frozen > 0


@contextlib.contextmanager
def frozen() -> Iterator[None]:
    """Compile nothing in this block, in any thread: a missing kernel is a `MissingKernelError`."""
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
    """Return the binary of `source` for `target`, from memory or the cache, or built now.

    Args:
        source: what to compile; a library that is built already is taken as it is.
        macros: preprocessor macros, sorted by name before use; bool is 1 or 0, a str is a type, a
            name or an expression.
        target: `"cpu"`, `"sim"` for device code of the simulated NPU, `"cuda"`, `"aarch64"`, one
            of `register_target`, or a variant like `"cuda:sm_90"`, `"aarch64:armv8.2-a"`.
        flags: more compiler options, each joined with its value, in order.
        debug: what to add for debugging; None does as `BRINGUP_JIT_DEBUG`
            says. A build of its own in the cache.

    Raises:
        CompileError: the compiler refused the source; the message has the first diagnostic.
        MissingCompilerError: there is no compiler.
        MissingKernelError: it would have to be built, and compiling is frozen.
        FileNotFoundError: the source's file does not exist.
        TypeError, ValueError: a macro, a flag or the target cannot be what it says, or the target
            does not build what the source is written in.

    Examples:
        >>> import ctypes
        >>> from bringup import jit
        >>> text = "int twice(int n) { return 2 * n; }"
        >>> source = jit.Source(name="twice.c", text=text, entry="twice", abi="function")
        >>> ctypes.CDLL(str(jit.compile(source).path)).twice(21)
        42
    """
    if isinstance(source, Source) and source.is_library:
        return _library(source, macros, target, flags)
    store = cache()
    request = request_without_compiler(source, macros, target, flags, debug)
    # Listeners want to know the compiler, which no record of a call has.
    name = "" if events.has_listeners(events.Asked) else call_name(request)
    question = Question(request, store, name)
    if name and (hit := first_answer(When.CALLED, question)):
        return _binary_of(request, hit)
    try:
        request = with_compiler(request, store)
    except MissingCompilerError as error:
        if settings.jit_cxx():
            raise  # a compiler was chosen, and what another one built is not what was asked for
        question = question._replace(missing=error)
    if events.has_listeners(events.Asked):
        events.emit(events.Asked(request))
    question = question._replace(request=request)
    if question.missing is not None:
        return _binary_of(request, _find_without_compiler(question))
    hit, digest = _resolve(question)
    if name:
        _note(request, digest, hit, name, store)
    return _binary_of(request, hit)


def _library(
    source: Source, macros: Mapping[str, Macro], target: str, flags: Iterable[str]
) -> Binary:
    """Return a library that is there already, as a binary."""
    if macros or tuple(flags):
        raise ValueError(f"{source} is built already: macros and flags cannot change it")
    path = Path(str(source.path))
    return Binary(
        path, library_key(source), source.symbol, source.abi, "host", target, prebuilt=True
    )


def _binary_of(request: Request, hit: Hit) -> Binary:
    """Return one object for one entry: what makes it another binary is in its key."""
    path, source = str(hit.path), request.source
    known = _state.binaries.get(path)
    if known is None:
        known = _state.binaries[path] = Binary(
            hit.path, hit.key, source.symbol, source.abi, source.kind, request.target, request.debug
        )
    return known


def _note(request: Request, source_digest: str, hit: Hit, name: str, store: Cache) -> None:
    """Let this call be answered by its record."""
    if not hit.sha256 or not str(hit.path).startswith(store.layout.prefix):
        return
    record = call_record(request, source_digest, hit)
    if record is not None:
        store.note_call(name, record)


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
    """Return the request of a call of `compile` with these arguments. Raises as it does."""
    return with_compiler(request_without_compiler(source, macros, target, flags, debug), store)


def request_without_compiler(
    source: Source,
    macros: Mapping[str, Macro],
    target: str,
    flags: Iterable[str],
    debug: Debug | None,
) -> Request:
    """Return the request of a call of `compile`, before its compiler is looked for."""
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
    """Return the request with the compiler that is there now."""
    compiler = request.platform.toolchain(store, request.source.kind)
    return replace(request, toolchain=compiler)


def find(request: Request, store: Cache) -> Hit | None:
    """Return the entry that answers `request`, never building one. Raises `FileNotFoundError`."""
    return first_answer(When.ASKED, Question(request, store, digest=request.source.digest()))


def _find_without_compiler(question: Question) -> Hit:
    question = question._replace(digest=question.request.source.digest())
    try:
        hit = first_answer(When.WITHOUT_COMPILER, question)
    except MissingCompilerError as error:
        if is_frozen():
            raise _missing_kernel(question) from error
        raise
    assert hit is not None  # it answers or raises
    return hit


def _missing_kernel(question: Question) -> MissingKernelError:
    from bringup.jit.lookup.warmup import missing_kernel  # a hit has no use for it

    return missing_kernel(question.request, question.digest, question.store)


def _resolve(question: Question) -> tuple[Hit, str]:
    """Return the hit, and the digest of the source that it was built from."""
    request = question.request
    for _ in range(_SOURCE_ATTEMPTS):
        digest = request.source.digest()
        try:
            return _find_or_build(question._replace(digest=digest)), digest
        except SourceChangedError:
            continue
    raise CompileError(
        f"{request.source}: it kept changing while it was compiled; try again when it is written"
    )


def _find_or_build(question: Question) -> Hit:
    if hit := first_answer(When.ASKED, question):
        return hit
    if is_frozen():
        if hit := first_answer(When.FROZEN, question):
            return hit
        raise _missing_kernel(question)
    return _build_alone(question)


def _build_alone(question: Question) -> Hit:
    """Builds, or waits for the thread that builds the same."""
    request, store = question.request, question.store
    flight = (store.root, question.key)
    with _state.lock:
        running = _state.flights.get(flight)
        if running is None:
            mine = _state.flights[flight] = Future()
    if running is not None:
        try:
            return running.result()
        except CancelledError:  # the building thread was interrupted
            return _find_or_build(question)
    from bringup.jit.lookup.building import build_somewhere  # a hit has no use for it

    try:
        hit = build_somewhere(request, question.digest, store)
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
    """Return which compiler builds sources of this kind for `target`, or why none does.

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
