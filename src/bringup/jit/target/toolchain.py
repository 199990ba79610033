"""What is known of a compiler: where it is, what can change a binary, what it runs in."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import resource
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from bringup import _native, settings
from bringup.errors import MissingCompilerError
from bringup.jit.files.identity import Stamp, as_stamp, bytes_digest, file_digest, read_bytes, stamp

_QUERY_SECONDS = 60
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_LOADED_LIBRARY = r"(?m)^\s*(?:\S+ => )?(/\S.*) \(0x[0-9a-f]+\)$"
# The same for everybody: what they say reaches binaries or messages.
_FIXED = {"LC_ALL": "C", "SOURCE_DATE_EPOCH": "0"}
# Needed to run; what they lead to is identified by its content.
_INHERITED = ("HOME", "LD_LIBRARY_PATH", "PATH", "TMPDIR")


@dataclass(frozen=True)
class Toolchain:
    """A compiler that was found and asked.

    Attributes:
        compiler: what is run.
        version: first line of what it says of itself.
        family: `"gcc"`, `"clang"`, or the vendor's own name for the dialect of its options.
        machine: what it builds for: a target triple, or the vendor's name for it.
        isa: the instruction set in explicit terms, whatever `-march=native` means here.
        identity: digest over version text, programs and the libraries that they load.
        assembler, linker: the same for these.
        runtime: digest over the files that are linked into every binary.
        fingerprint: digest over all of that.
        tools: the compiler's programs, with the stamps for which this holds, looked at in each
            call.
        parts: the other files that were digested, with theirs, looked at once in a process.
        linked: the files behind `runtime`.
        lacking: what of `isa` this machine cannot run.
        environment: the variables that can change a binary, as `NAME=value`.
        include_directories: where every build finds bringup's headers.
        c_folders, cxx_folders: the compiler's own folders for headers, in order, missing ones too.
        host: the compiler of the host that this one uses, if it uses one.
    """

    compiler: str
    version: str
    machine: str
    isa: tuple[str, ...]
    identity: str
    fingerprint: str = ""
    family: str = "gcc"
    assembler: str = ""
    linker: str = ""
    runtime: str = ""
    tools: tuple[tuple[str, Stamp], ...] = ()
    parts: tuple[tuple[str, Stamp], ...] = ()
    linked: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    include_directories: tuple[str, ...] = ()
    c_folders: tuple[str, ...] = ()
    cxx_folders: tuple[str, ...] = ()
    host: str = ""

    def untouched(self) -> bool:
        """Return whether the compiler's programs are the ones that were asked."""
        return _same(self.tools)

    def whole(self) -> bool:
        """Return whether everything that was digested is as it was."""
        return _same(self.tools) and _same(self.parts)

    def fingerprinted(self) -> Toolchain:
        """Return this toolchain with the fingerprint that belongs to it."""
        parts = (self.identity, self.assembler, self.linker, self.runtime, self.machine)
        return dataclasses.replace(
            self, fingerprint=digest_of(*parts, *self.isa, "\0", *self.environment)
        )


class ToolchainInfo(NamedTuple):
    """What `bringup doctor` shows of a target: its compiler, or the problem.

    Attributes:
        target: its name.
        path: of the compiler; None where there is none.
        version: of the compiler, in its own words.
        flags: what every build gets.
        isa: the sets of instructions that are built for.
        problem: why nothing can be built, or "".
    """

    target: str
    path: Path | None = None
    version: str = ""
    flags: tuple[str, ...] = ()
    isa: tuple[str, ...] = ()
    problem: str = ""


class Memo(Protocol):
    """Where answers of compilers are kept between processes."""

    def recall(self, name: str) -> bytes | None:
        """Return what was kept under `name`, or None."""

    def keep(self, name: str, content: bytes) -> None:
        """Keep `content` under `name` if it can."""


class KnownToolchain:
    """The toolchain found last, for equal questions while its programs are unchanged."""

    def __init__(self) -> None:
        self._asked_for: object = None
        self.last: Toolchain | None = None

    def get(self, asked_for: object, find: Callable[[], Toolchain]) -> Toolchain:
        """Return the toolchain that `asked_for` decides; what `find` raises is not remembered."""
        if self.last is None or self._asked_for != asked_for or not self.last.untouched():
            self.last, self._asked_for = find(), asked_for
        return self.last


def recalled_or_asked(memo: Memo, asked_for: object, ask: Callable[[], Toolchain]) -> Toolchain:
    """Return the toolchain of `asked_for` by a record or by `ask`, for others too."""
    name = f"{bytes_digest(repr(asked_for).encode(errors='surrogateescape'))}.json"
    found = recall(memo.recall(name))
    if found is None:
        found = ask()
        memo.keep(name, remember(found))
    return found


def compiler_environment(variables: Iterable[str] = ()) -> dict[str, str]:
    """Return a minimal environment with the `variables` that a target declares."""
    return {**settings.inherited(*_INHERITED, *variables), **_FIXED}


def build_environment(variables: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the part of the environment that can change a binary, as `NAME=value`."""
    seen = {**settings.inherited(*variables), **_FIXED}
    return tuple(f"{name}={value}" for name, value in sorted(seen.items()))


def ask(
    compiler: str,
    *arguments: str,
    get: str,
    said_on_stderr: bool = False,
    variables: Iterable[str] = (),
) -> str:
    """Return what the compiler prints. Raises `MissingCompilerError` with the hint `get`."""
    command = [compiler, *arguments]
    try:
        answer = _answer(command, compiler_environment(variables))
        signalled = answer.returncode < 0 or answer.returncode > 128  # as a shell says it
        if signalled or "signal terminated program" in answer.stderr:
            # as a build's compiler may, or a part that it started; it is asked once more
            answer = _answer(command, compiler_environment(variables))
        answer.check_returncode()
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise MissingCompilerError(
            f"the compiler {compiler} does not work: `{' '.join(command)}` failed "
            f"({said[0] if said else error}). {space_advice(said) or get}",
            command=command,
        ) from error
    return answer.stderr if said_on_stderr else answer.stdout


def _answer(
    command: Sequence[str], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_QUERY_SECONDS,
        check=False,
    )


def candidates(name: str, also: Iterable[str] = ()) -> Iterator[str]:
    """Return where a program `name` is looked for: on PATH, then in the folders `also`."""
    folders = settings.inherited("PATH").get("PATH", os.defpath).split(os.pathsep)
    return (os.path.join(folder, name) for folder in (*folders, *also))


def on_path(name: str, also: Iterable[str] = ()) -> str | None:
    """Return the program `name` on PATH or in `also`, faster than the standard library."""
    for candidate in candidates(name, also):
        if os.access(candidate, os.X_OK) and os.path.isfile(candidate):
            return os.path.abspath(candidate)
    return None


def digest_of(*parts: str) -> str:
    """Return one digest for several texts."""
    return bytes_digest("\0".join(parts).encode(errors="surrogateescape"))


def content_of(version: str, files: Iterable[str]) -> str:
    """Return one digest for a version text and the contents of files, wherever they lie."""
    return digest_of(version, *map(file_digest, files))


def stamps_of(files: Iterable[str]) -> tuple[tuple[str, Stamp], ...]:
    """Return the files with their stamps, each once."""
    return tuple((path, stamp(path)) for path in dict.fromkeys(files))


def libraries_of(program: str) -> list[str]:
    """Return the shared libraries that the loader, which is asked, gives the program."""
    answer = _answer([program], {**compiler_environment(), "LD_TRACE_LOADED_OBJECTS": "1"})
    return sorted(
        path for path in re.findall(_LOADED_LIBRARY, answer.stdout) if os.path.isfile(path)
    )


def space_advice(said: Iterable[str]) -> str:
    """Return what to do about space or a limit for temporary files, if that may be the reason."""
    if re.search(r"No space left|[Qq]uota exceeded|No usable temporary", " ".join(said)):
        folder = settings.inherited("TMPDIR").get("TMPDIR", "/tmp")
        return (
            f"Free space where compilers keep temporary files ({folder}), or set TMPDIR to a "
            "folder with space"
        )
    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if most == resource.RLIM_INFINITY:
        return ""
    if not any(re.search(r"File (size|too)|SIGXFSZ|signal|ld returned", line) for line in said):
        return ""
    return f"This process may write files of {most} bytes at most: raise `ulimit -f` and try again"


def _same(stamps: Iterable[tuple[str, Stamp]]) -> bool:
    try:
        return all(stamp(path) == seen for path, seen in stamps)
    except OSError:
        return False


@cache
def boot_id() -> str:
    """Return the id of this machine's boot: elsewhere the same files are another ISA."""
    try:
        return read_bytes(_BOOT_ID).decode().strip()
    except OSError:
        return ""


def remember(toolchain: Toolchain) -> bytes:
    """Return the toolchain as text for `recall`, in another process or installation."""
    others = [path for path in toolchain.include_directories if path not in bringup_includes()]
    answers = {**dataclasses.asdict(toolchain), "include_directories": others, "booted": boot_id()}
    return json.dumps(answers).encode()


def recall(kept: bytes | None) -> Toolchain | None:
    """Return the toolchain of answers that still hold. What cannot be read counts as not there."""
    if kept is None:
        return None
    try:
        answers: dict[str, Any] = json.loads(kept)
        if answers.pop("booted") != boot_id():
            return None
        for name in ("tools", "parts"):
            answers[name] = tuple((path, as_stamp(seen)) for path, seen in answers[name])
        answers["include_directories"] = [*bringup_includes(), *answers["include_directories"]]
        lists = {name: tuple(given) for name, given in answers.items() if isinstance(given, list)}
        found = Toolchain(**{**answers, **lists})
        return found if found.whole() else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


@cache
def bringup_includes() -> tuple[str, ...]:
    return (str(_native.include_dir()),)


def include_flags() -> tuple[str, ...]:
    """Return what a compiler needs to find `bringup/kernel.h`."""
    return tuple(f"-I{directory}" for directory in bringup_includes())
