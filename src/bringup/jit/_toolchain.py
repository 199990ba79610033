"""Which compiler builds for a target, and what identifies it: version, content, and the instruction
set that `-march=native` means on this machine.

Asking a compiler costs tens of milliseconds, so the answers are kept beside the cache, valid while
the compiler's files are untouched and the machine was not booted anew.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from bringup import _native, settings
from bringup.errors import MissingCompilerError
from bringup.jit._files import Stamp, as_stamp, bytes_digest, file_digest, read_bytes, stamp

__all__ = ["TARGETS", "Target", "Toolchain", "ToolchainInfo", "compiler_environment", "find_target"]

_CANDIDATES = ("c++", "g++", "clang++")
_QUERY_SECONDS = 60
_BOOT_ID = "/proc/sys/kernel/random/boot_id"

# No errno and no trapping arithmetic: neither changes a value, both keep loops from being
# vectorised. Contraction is what -O3 users expect and is off by default in ISO C. Interposition
# off: a kernel's own functions are inlined, and a symbol of the same name in the process cannot
# take their place.
_COMMON_FLAGS = (
    "-O3",
    "-march=native",
    "-fPIC",
    "-shared",
    "-pipe",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fno-semantic-interposition",
    "-Wl,-Bsymbolic,-z,defs,-z,noseparate-code,--as-needed,-s",
)
_LANGUAGE_FLAGS = {"c": ("-x", "c", "-std=c11"), "c++": ("-x", "c++", "-std=c++17")}


@dataclass(frozen=True)
class Toolchain:
    """A compiler that was found and asked.

    Attributes:
        compiler: what is run.
        version: first line of `--version`.
        machine: the target triple.
        isa: what `-march=native` adds to the triple's baseline, as predefined macros.
        identity: digest over version text and content of the compiler's files.
        fingerprint: digest over identity, machine and isa.
        stamps: files that have to stay untouched for all this to hold.
        include_directories: where every build finds bringup's headers.
    """

    compiler: str
    version: str
    machine: str
    isa: tuple[str, ...]
    identity: str
    fingerprint: str
    stamps: tuple[tuple[str, Stamp], ...]
    include_directories: tuple[str, ...]

    def flags(self, language: str) -> tuple[str, ...]:
        """The flags every build gets, before the caller's."""
        return (*_LANGUAGE_FLAGS[language], *_COMMON_FLAGS)

    def untouched(self) -> bool:
        """Whether the compiler's files are the ones that were asked."""
        try:
            return all(stamp(path) == seen for path, seen in self.stamps)
        except OSError:
            return False


@dataclass(frozen=True)
class ToolchainInfo:
    """What `bringup doctor` shows of a target: its compiler, or the problem."""

    target: str
    path: Path | None = None
    version: str = ""
    flags: tuple[str, ...] = ()
    isa: tuple[str, ...] = ()
    problem: str = ""


class Memo(Protocol):
    """Where answers of compilers are kept between processes."""

    def recall(self, name: str) -> bytes | None:
        """What was kept under `name`, or None."""

    def keep(self, name: str, content: bytes) -> None:
        """Keeps `content` if it can."""


class Target(Protocol):
    """Something that kernels are built for."""

    name: str

    def toolchain(self, memo: Memo) -> Toolchain:
        """The toolchain as it is now. Raises `MissingCompilerError`."""


def compiler_environment() -> dict[str, str]:
    """What the compiler sees of the environment: enough to run, nothing that changes what it
    builds.
    """
    kept = settings.inherited("HOME", "LD_LIBRARY_PATH", "PATH", "TMPDIR")
    return {**kept, "LC_ALL": "C", "SOURCE_DATE_EPOCH": "0"}


def _ask(compiler: str, *arguments: str) -> str:
    command = [compiler, *arguments]
    try:
        answer = subprocess.run(
            command,
            env=compiler_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_QUERY_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise MissingCompilerError(
            f"the compiler {compiler} does not work: `{' '.join(command)}` failed "
            f"({said[0] if said else error}). Set BRINGUP_JIT_CXX to a working C++ compiler, or "
            "get one with: apt-get install g++",
            command=command,
        ) from error
    return answer.stdout


def _on_path(name: str) -> str | None:
    """The program `name` on PATH; the standard library's search costs several times as much."""
    for folder in settings.inherited("PATH").get("PATH", os.defpath).split(os.pathsep):
        candidate = os.path.join(folder, name)
        if os.access(candidate, os.X_OK) and os.path.isfile(candidate):
            return os.path.abspath(candidate)
    return None


def find_compiler() -> str:
    """The path of the host's C++ compiler.

    Raises `MissingCompilerError` saying what was looked for.
    """
    wanted = settings.jit_cxx()
    if wanted:
        if found := _on_path(os.path.expanduser(wanted)):
            return found
        raise MissingCompilerError(
            f"no C++ compiler: BRINGUP_JIT_CXX is {wanted!r}, and there is no such program. Unset "
            f"it to use the first of {', '.join(_CANDIDATES)} on PATH, or get one with: "
            "apt-get install g++"
        )
    for name in _CANDIDATES:
        if found := _on_path(name):
            return found
    raise MissingCompilerError(
        f"no C++ compiler: BRINGUP_JIT_CXX is not set, and none of {', '.join(_CANDIDATES)} is on "
        "PATH. Get one with: apt-get install g++"
    )


def _predefined(compiler: str, *flags: str) -> set[str]:
    lines = _ask(compiler, *flags, "-dM", "-E", "-x", "c++", os.devnull).splitlines()
    return {line.removeprefix("#define ") for line in lines}


def _compiler_files(compiler: str) -> list[str]:
    """The driver and, for GCC, the compiler proper that it starts (the driver may be a wrapper)."""
    proper = _ask(compiler, "-print-prog-name=cc1plus").strip()
    return [compiler, *([proper] if os.path.isabs(proper) else [])]


def _digest_of(*parts: str) -> str:
    return bytes_digest("\0".join(parts).encode())


def _boot_id() -> str:
    try:
        return read_bytes(_BOOT_ID).decode().strip()
    except OSError:
        return ""


def _query(compiler: str) -> dict[str, Any]:
    version = _ask(compiler, "--version")
    machine = _ask(compiler, "-dumpmachine").strip()
    isa = sorted(_predefined(compiler, "-march=native") - _predefined(compiler))
    files = _compiler_files(compiler)
    stamps = [(path, stamp(path)) for path in files]
    identity = _digest_of(version, *map(file_digest, files))
    return {
        "boot": _boot_id(),
        "version": version.partition("\n")[0],
        "machine": machine,
        "isa": isa,
        "identity": identity,
        "fingerprint": _digest_of(identity, machine, *isa),
        "stamps": stamps,
    }


def _toolchain_from(compiler: str, answers: dict[str, Any]) -> Toolchain:
    return Toolchain(
        compiler=compiler,
        version=answers["version"],
        machine=answers["machine"],
        isa=tuple(answers["isa"]),
        identity=answers["identity"],
        fingerprint=answers["fingerprint"],
        stamps=tuple((file, as_stamp(seen)) for file, seen in answers["stamps"]),
        include_directories=_bringup_includes(),
    )


def _remembered(compiler: str, kept: bytes | None) -> Toolchain | None:
    """The toolchain of answers that still hold. What cannot be read counts as not there."""
    if kept is None:
        return None
    try:
        answers = json.loads(kept)
        found = _toolchain_from(compiler, answers)
        return found if found.untouched() and answers["boot"] == _boot_id() else None
    except (ValueError, KeyError, TypeError):
        return None


@cache
def _bringup_includes() -> tuple[str, ...]:
    return (str(_native.include_dir()),)


class HostTarget:
    """A target built by the host's C++ compiler: the cpu itself, and the simulated NPU."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._known: Toolchain | None = None
        self._known_for: tuple[str, dict[str, str]] | None = None

    def toolchain(self, memo: Memo) -> Toolchain:
        """The host compiler as it is now. Raises `MissingCompilerError`."""
        asked_for = (settings.jit_cxx(), settings.inherited("PATH"))
        known = self._known
        if known is not None and self._known_for == asked_for and known.untouched():
            return known
        compiler = find_compiler()
        name = f"{bytes_digest(compiler.encode())}.json"
        toolchain = _remembered(compiler, memo.recall(name))
        if toolchain is None:
            answers = _query(compiler)
            memo.keep(name, json.dumps(answers).encode())
            toolchain = _toolchain_from(compiler, answers)
        self._known, self._known_for = toolchain, asked_for
        return toolchain


TARGETS: dict[str, Target] = {name: HostTarget(name) for name in ("cpu", "sim")}


def find_target(name: str) -> Target:
    """The target called `name`. Raises `ValueError` listing the targets there are."""
    try:
        return TARGETS[name]
    except KeyError:
        raise ValueError(
            f"target {name!r}: expected one of {', '.join(map(repr, TARGETS))}"
        ) from None


def include_flags() -> tuple[str, ...]:
    """What a compiler needs to find `bringup/kernel.h`."""
    return tuple(f"-I{directory}" for directory in _bringup_includes())
