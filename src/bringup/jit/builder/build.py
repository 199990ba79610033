"""One run of the compiler: what it read, where it looked, and what it said when it failed."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bringup import settings
from bringup.errors import CompileError
from bringup.jit.builder.diagnose import Failure, compile_error, disk_is_full, operator_prefix
from bringup.jit.builder.header_search import (
    HeaderSearch,
    SearchPath,
    endless_header,
    header_search,
    places_before,
)
from bringup.jit.builder.request import Request, SourceChangedError
from bringup.jit.files.archive import thin_members
from bringup.jit.files.depfile import is_whole, read_depfile
from bringup.jit.files.elf import damage_of, keep_symbols_apart, machine_of, symbols_of
from bringup.jit.files.headers import Header, Searched, read_header
from bringup.jit.files.identity import bytes_digest, next_file_time_ns, stamp
from bringup.jit.files.layout import BINARY, LOG, StoreUnwritableError
from bringup.jit.source.include_scan import mentions_of
from bringup.jit.source.param_struct import check_args_symbols
from bringup.jit.target.compiler_process import Finished
from bringup.jit.target.flags import files_named, include_directories, library_directories
from bringup.jit.target.target import Job

_ATTEMPTS = 5

_log = settings.logger("jit")


@dataclass(frozen=True)
class Build:
    """A successful run."""

    headers: tuple[Header, ...]  # in the order of their inclusion
    # The other files that it read beyond what every build of the toolchain reads.
    inputs: tuple[Header, ...]
    searched: Searched  # where it looked for files, besides those that it read
    answers: tuple[str, ...]  # what its probes were answered
    names: tuple[str, ...]  # of source and headers, where the binary can have any
    command: tuple[str, ...]  # what ran
    seconds: float  # how long it took


def read_dependencies(staged: Path) -> list[str]:
    """Return the compiler's headers but the source. Raises `OSError` without a depfile."""
    return [path for path in read_depfile(staged / Job.headers)[1:] if path != os.devnull]


def search_path(request: Request) -> SearchPath:
    compiler, source = request.toolchain, request.source
    system = request.platform.searched(compiler, source.language, request.flags)
    return SearchPath.of(source.directory, compiler.include_directories, request.flags, system)


def search_of_build(
    request: Request, source: str, headers: Sequence[str], start_ns: int
) -> HeaderSearch:
    """Return where a build that began at `start_ns`, of the file `source`, looked for the `headers`
    that it read, and the answers of its probes. Raises `OSError` when a file is gone.
    """
    flags, path = request.flags, search_path(request)
    defined = [flag[2:] for flag in flags if flag.startswith("-D")]
    forced = any(flag.startswith(("-include", "-imacros")) for flag in flags)
    macros = (*request.macros, *defined)
    return header_search(source, headers, path, macros, start_ns, forced=forced)


def _untracked(job: Job, found: HeaderSearch) -> str:
    """Return which inputs of the build cannot be tracked and what to write instead, or ""."""
    for one in found.untracked:
        if "embed" in one.text:
            return (
                f"{one.path}: `{one.text}`: #embed is not supported, for its file would not be "
                "part of the kernel's identity; use a header with the numbers, or .incbin"
            )
        return (
            f"{one.path}: `{one.text}`: the file that this asks for is not known from the text, "
            'so the kernel could not be built again when it comes or goes; write __has_include("'
            'name"), or decide by a macro'
        )
    for path in found.own:
        said = mentions_of(path)
        if said.assembles is None and not (job.folder / job.assembled).exists():
            return (
                f"{path}: {job.toolchain.version} does not say which files .incbin reads; name "
                "them by literal absolute paths, or build with g++"
            )
        if said.says_time and job.toolchain.family not in ("gcc", "clang"):
            return f"{path}: __TIMESTAMP__ is the time of a file, which no kernel's identity has"
    return ""


@dataclass(frozen=True)
class _Tools:
    """Reports of linker and assembler; None for one that says nothing."""

    linked: list[str] | None
    assembled: list[str] | None

    @classmethod
    def of(cls, job: Job) -> _Tools:
        return cls(_depfile(job.folder / job.linked), _depfile(job.folder / job.assembled))


def _depfile(path: Path) -> list[str] | None:
    try:
        return read_depfile(path)
    except FileNotFoundError:
        return None


def _inputs(job: Job, request: Request, own: Iterable[str], tools: _Tools) -> list[str]:
    """Return other inputs: unusual linker inputs, assembled data, files and programs of flags."""
    usual = {*job.toolchain.linked, os.path.join(job.folder, job.file)}
    linked = [path for path in tools.linked or () if path not in usual]
    if tools.assembled is None:
        assembled = [file for path in own for file in mentions_of(path).assembles or ()]
    else:
        inside = os.path.join(job.folder, "")
        assembled = [path for path in tools.assembled if not path.startswith(inside)]
    chosen = request.platform.tools(job)
    found = dict.fromkeys((*linked, *assembled, *files_named(job.flags), *chosen))
    # Objects that the compiler hands to its linker are gone by now.
    there = [path for path in found if os.path.isfile(path)]
    members = dict.fromkeys(member for path in there for member in thin_members(path))
    return [*there, *(path for path in members if os.path.isfile(path))]


def _passed(job: Job, request: Request, tools: _Tools, start_ns: int) -> Searched:
    """Return where the linker or assembler would have found other files first."""
    folders = library_directories(job.flags)
    passed = [path for path in request.platform.passed_by_linker(job) if not os.path.exists(path)]
    searched_for_data = (*job.toolchain.include_directories, *include_directories(job.flags, "-I"))
    return (
        Searched.of(passed)
        .joined(places_before(tools.linked or (), folders, start_ns))
        .joined(places_before(tools.assembled or (), searched_for_data, start_ns))
    )


def shown_names(request: Request, found: HeaderSearch) -> tuple[str, ...]:
    """Return the names in the binary of its source and then the request's own headers."""
    if not (request.debug or found.says_names):
        return ()
    compiler, source = request.toolchain, request.source
    shown = [(source.directory, ".")] if source.directory else []
    named = (*compiler.include_directories, *include_directories(request.flags))
    shown += [(folder, "include") for folder in named]
    return (source.file_name, *(_shown(path, shown) for path in found.own[1:]))


def _shown(path: str, folders: Sequence[tuple[str, str]]) -> str:
    """Return the path as the last fitting `-ffile-prefix-map` has it."""
    for folder, name in reversed(folders):
        if path.startswith(os.path.join(folder, "")):
            return name + path[len(folder.rstrip("/")) :]
    return path


def _job(request: Request, staged: Path) -> Job:
    """Return the job, with a text as a file in the folder."""
    source = request.source
    if source.text is None:
        file = str(source)
    else:
        file = source.file_name
        (staged / file).write_bytes(source.content())
    return Job(
        source,
        file,
        BINARY,
        request.macros,
        request.flags,
        request.debug,
        request.toolchain,
        staged,
    )


def _keep(request: Request, source_digest: str, staged: Path, log: str) -> None:
    """Leave what belongs to an entry in the folder. Raises `SourceChangedError`."""
    content = request.source.content()
    if bytes_digest(content) != source_digest:
        raise SourceChangedError
    (staged / request.source.file_name).write_bytes(content)
    (staged / LOG).write_bytes(os.fsencode(log))
    for left in (Job.headers, Job.linked, Job.assembled):
        (staged / left).unlink(missing_ok=True)


def _log_of(done: Finished) -> str:
    return f"{shlex.join(done.command)}\n{done.output}"


def _run(request: Request, job: Job, command: Sequence[str], failed_log: Path) -> Finished:
    """Run a command. Raises `CompileError`, or `StoreUnwritableError` without space for it."""
    try:
        done = request.platform.run(job, command)
    except OSError as error:
        raise CompileError(
            f"{request.source}: the compiler {command[0]} cannot be started: {error}. It was there "
            "a moment ago: is it executable, on a file system that is not mounted noexec, and is "
            "there memory for another process?",
            command=list(command),
        ) from error
    if done.status == 0:
        return done
    failure = Failure(
        request.source, request.target, request.macros, request.toolchain, job.folder, done
    )
    if disk_is_full(failure):
        raise StoreUnwritableError(str(compile_error(failure, job.folder / LOG)))
    failed_log.write_bytes(os.fsencode(_log_of(done)))
    raise compile_error(failure, failed_log)


def _run_whole(request: Request, job: Job, command: Sequence[str], failed_log: Path) -> Finished:
    """Run the compiler, again after an output left out or cut off. Raises as `_run` does."""
    for _ in range(2):
        done = _run(request, job, command, failed_log)
        problem = _unwritten(job)
        if not problem:
            return done
        _log.warning("%s: the compiler ended without an error and %s", request.source, problem)
    raise CompileError(
        f"{request.source}: the compiler of target {request.target!r} ended without an error, "
        f"twice, and {problem}; the command of {type(request.platform).__name__} has to write "
        f"job.output and job.headers: {shlex.join(command)}. Does it work outside of bringup, and "
        f"is the disk of {job.folder} in order?",
        command=list(command),
    )


def _unwritten(job: Job) -> str:
    """Return what a compiler that did not fail left out or cut off, or ""."""
    for name in (BINARY, job.headers):
        if not (job.folder / name).is_file():
            return f"did not write {name}"
    is_gnu = job.toolchain.family in ("gcc", "clang")  # others may write what is no ELF file
    damage = damage_of(job.folder / BINARY)
    if damage or (is_gnu and not machine_of(job.folder / BINARY)):
        return f"did not write all of {BINARY}: {damage or 'it is no ELF file'}"
    for name in (job.headers, job.linked, job.assembled):
        path = job.folder / name
        if path.is_file() and not is_whole(path, ends_lines=is_gnu):
            return f"did not write all of {name}"
    return ""


def _check_headers(request: Request, source: str) -> None:
    """Raise `CompileError` for a header that is a pipe or a device: the compiler would wait."""
    if found := endless_header(source, search_path(request)):
        raise CompileError(
            f"{request.source}: {found}, which it includes, is a pipe or a device, not a file; a "
            "compiler that reads it may wait for ever"
        )


def _read_headers(request: Request, staged: Path) -> tuple[Header, ...]:
    """Return the headers of the build. Raises `CompileError` for one that is not there."""
    try:
        return tuple(map(read_header, read_dependencies(staged)))
    except OSError as error:
        raise CompileError(
            f"{request.source}: the compiler says that it read {error.filename}, and that cannot "
            f"be read ({error.strerror}): it was removed, or its name has a character "
            "that the compiler does not write as it is (a backslash); rename it"
        ) from error


def _uncallable(request: Request, binary: Path) -> str:
    """Return why the entry of a binary cannot be called, or ""."""
    if request.platform.host_library:
        symbols = symbols_of(binary)
        return "" if symbols is None else check_args_symbols(symbols.exported)
    try:
        request.platform.check_symbol(binary, request.source.symbol)
    except ValueError as error:
        return str(error)
    return ""


def build(request: Request, source_digest: str, staged: Path, failed_log: Path) -> Build:
    """Compile `request` into the folder `staged`: kernel.so, build.log, the source.

    Raises:
        CompileError: the compiler failed (everything it said is then in `failed_log`), or the
            headers kept changing while it ran.
        StoreUnwritableError: there was no space for what it writes.
        SourceChangedError: the source is no longer the one with `source_digest`.
    """
    job = _job(request, staged)
    target = request.platform
    command = target.command(job)
    compiled = os.path.join(staged, job.file)
    _check_headers(request, compiled)
    before: object = None
    for _ in range(_ATTEMPTS):
        start_ns, start = next_file_time_ns(), time.perf_counter()
        done = _run_whole(request, job, command, failed_log)
        seconds = time.perf_counter() - start
        if target.host_library:
            keep_symbols_apart(staged / BINARY)
        headers = _read_headers(request, staged)
        found = search_of_build(request, compiled, [header.path for header in headers], start_ns)
        uncalled = _uncallable(request, staged / BINARY)
        if reason := _untracked(job, found) or uncalled:
            raise CompileError(f"{operator_prefix()}{request.source}: {reason}", command=command)
        tools = _Tools.of(job)
        inputs = tuple(map(read_header, _inputs(job, request, found.own, tools)))
        read = (*headers, *inputs)
        # What was compiled is what is on disk when nothing was touched since the start, or when the
        # content before this run is the content after it.
        now = ([file.digest for file in read], found.answers)
        touched = any(max((file.seen or stamp(file.path))[2:]) >= start_ns for file in read)
        if not (touched or found.probed.is_younger_than(start_ns)) or now == before:
            for dump in target.dumps(job).values():
                _run(request, job, list(dump), failed_log)
            passed = _passed(job, request, tools, start_ns)
            searched = found.searched.joined(found.probed).joined(passed)
            names = shown_names(request, found)
            _keep(request, source_digest, staged, _log_of(done))
            return Build(headers, inputs, searched, found.answers, names, done.command, seconds)
        before = now
    raise CompileError(
        f"{request.source}: its headers kept changing while it was compiled; try again when they "
        "are written",
        command=command,
    )
