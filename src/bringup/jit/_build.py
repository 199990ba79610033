"""One run of the compiler: the command, the time limit, the headers it read, and what it said
when it failed.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bringup.errors import CompileError
from bringup.jit._cache import BINARY, LOG, Header, read_header
from bringup.jit._files import bytes_digest
from bringup.jit._key import Record, build_record, include_directories, request_key
from bringup.jit._source import Source
from bringup.jit._toolchain import Toolchain, compiler_environment

__all__ = ["Build", "Request", "SourceChangedError", "build", "read_dependencies"]

COMPILE_SECONDS = 300
_ATTEMPTS = 5
_DEPENDENCIES = "kernel.d"
_ERROR_LINE = re.compile(
    r"(: (fatal )?error[: ]|undefined reference|required symbol|cannot find -l)"
)
_DETAIL_LINE = re.compile(r"\s*\d*\s*\|")


class SourceChangedError(Exception):
    """Internal: the source was changed while it was compiled."""


@dataclass(frozen=True)
class Request:
    """One build that somebody asked for, in canonical form."""

    source: Source
    macros: tuple[str, ...]
    target: str
    flags: tuple[str, ...]
    toolchain: Toolchain

    def key(self, source_digest: str) -> str:
        """The request key of the source with this content."""
        return request_key(
            self.source, source_digest, self.macros, self.target, self.toolchain, self.flags
        )

    def record(self, source_digest: str, headers: Sequence[Header]) -> Record:
        """The key record of the source with this content, built with these headers."""
        return build_record(
            self.source,
            source_digest,
            self.macros,
            self.target,
            self.toolchain,
            self.flags,
            [header.digest for header in headers],
        )

    def __str__(self) -> str:
        parts = [str(self.source), f"entry {self.source.symbol!r}", f"target {self.target!r}"]
        if self.macros:
            parts.append(f"macros {' '.join(self.macros)}")
        if self.flags:
            parts.append(f"flags {' '.join(self.flags)}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Build:
    """A successful run: the headers in the order of their inclusion, the command, the seconds it
    took.
    """

    headers: tuple[Header, ...]
    command: tuple[str, ...]
    seconds: float


def _command(request: Request, source: str) -> list[str]:
    toolchain = request.toolchain
    searched = [*toolchain.include_directories, *include_directories(request.flags)]
    # Where the sources lie must not show in the binary: the same key is the same content.
    mapped = [(request.source.directory, "."), *((directory, "include") for directory in searched)]
    return [
        toolchain.compiler,
        *toolchain.flags(request.source.language),
        *(f"-ffile-prefix-map={directory}={shown}" for directory, shown in mapped if directory),
        *(f"-D{macro}" for macro in request.macros),
        *(f"-I{directory}" for directory in toolchain.include_directories),
        f"-Wl,--require-defined={request.source.symbol}",
        *("-MD", "-MF", _DEPENDENCIES, "-MT", "kernel", "-o", BINARY),
        source,
        *request.flags,
    ]


def _run(command: Sequence[str], staged: Path) -> tuple[int, str]:
    """Exit status and output. The compiler starts children of its own: all of them end with it."""
    process = subprocess.Popen(
        command,
        cwd=staged,
        env=compiler_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=COMPILE_SECONDS)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return -signal.SIGKILL, f"error: the compiler was stopped after {COMPILE_SECONDS} s"
    return process.returncode, output.decode(errors="replace")


def _first_diagnostic(log: str) -> str:
    lines = log.strip().splitlines()
    first = next((i for i, line in enumerate(lines) if _ERROR_LINE.search(line)), None)
    if first is None:
        return lines[0] if lines else "the compiler said nothing"
    last = first + 1
    while last < len(lines) and _DETAIL_LINE.match(lines[last]):
        last += 1
    return "\n".join(lines[first:last])


def _failure(
    request: Request, command: Sequence[str], status: int, log: str, kept: Path
) -> CompileError:
    diagnostic = _first_diagnostic(log)
    hint = ""
    if "required symbol" in log:
        symbol = request.source.symbol
        extern_c = ', declared extern "C"' if request.source.language == "c++" else ""
        hint = f"\nThe source has to define the function {symbol!r}{extern_c}."
    return CompileError(
        f"{request.source} did not compile for target {request.target!r} (exit status {status}):\n"
        f"{diagnostic}{hint}\ncommand: {shlex.join(command)}\nfull log: {kept}",
        command=list(command),
        diagnostic=diagnostic,
        log=log,
        status=status,
    )


def read_dependencies(staged: Path) -> list[str]:
    """The headers that the compiler read, without the source itself, from its depfile in make's
    syntax. Raises `OSError` when it left none.
    """
    text = os.fsdecode((staged / _DEPENDENCIES).read_bytes()).replace("\\\n", " ")
    words = re.findall(r"(?:\\.|[^\s\\])+", text.partition(":")[2])
    paths = [re.sub(r"\\(.)", r"\1", word).replace("$$", "$") for word in words]
    return [os.path.join(staged, path) for path in paths[1:]]


def _touched_since(headers: Sequence[Header], start_ns: int) -> bool:
    return any(header.seen is None and _changed_ns(header.path) >= start_ns for header in headers)


def _changed_ns(path: str) -> int:
    status = os.stat(path)
    return max(status.st_mtime_ns, status.st_ctime_ns)


def _digests(headers: Sequence[Header]) -> list[str]:
    return [header.digest for header in headers]


def _prepare(request: Request, staged: Path) -> list[str]:
    """Puts a text into the folder; the command that compiles the source."""
    source = request.source
    if source.text is None:
        return _command(request, str(source))
    (staged / source.file_name).write_bytes(source.content())
    return _command(request, source.file_name)


def _keep(request: Request, source_digest: str, staged: Path, log: str) -> None:
    """Leaves what belongs to an entry in the folder. Raises `SourceChangedError`."""
    content = request.source.content()
    if bytes_digest(content) != source_digest:
        raise SourceChangedError
    (staged / request.source.file_name).write_bytes(content)
    (staged / LOG).write_bytes(os.fsencode(log))
    (staged / _DEPENDENCIES).unlink()


def build(request: Request, source_digest: str, staged: Path, failed_log: Path) -> Build:
    """Compiles `request` into the folder `staged`: kernel.so, build.log, the source.

    Raises:
        CompileError: the compiler failed (everything it said is then in `failed_log`), or the
            headers kept changing while it ran.
        SourceChangedError: the source is no longer the one with `source_digest`.
    """
    command = _prepare(request, staged)
    before: list[str] | None = None
    for _ in range(_ATTEMPTS):
        start_ns, start = time.time_ns(), time.perf_counter()
        status, output = _run(command, staged)
        seconds = time.perf_counter() - start
        log = f"{shlex.join(command)}\n{output}"
        if status != 0:
            failed_log.write_bytes(os.fsencode(log))
            raise _failure(request, command, status, output, failed_log)
        headers = tuple(map(read_header, read_dependencies(staged)))
        # What was compiled is what is on disk when nothing was touched since the start, or when the
        # content before this run is the content after it.
        if not _touched_since(headers, start_ns) or _digests(headers) == before:
            _keep(request, source_digest, staged, log)
            return Build(headers, tuple(command), seconds)
        before = _digests(headers)
    raise CompileError(
        f"{request.source}: its headers kept changing while it was compiled; try again when they "
        "are written",
        command=command,
    )
