"""NVRTC: NVIDIA's compiler for device code as a library in this process, no toolkit needed.

It has no depfile, so it gets headers from us by name: for a missing one it compiles again.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bringup import settings
from bringup.errors import MissingCompilerError, first_line
from bringup.jit.files.identity import read_bytes
from bringup.jit.target.compiler_process import Finished
from bringup.jit.target.debug import Debug
from bringup.jit.target.flags import include_directories
from bringup.jit.target.target import Job
from bringup.jit.target.toolchain import (
    KnownToolchain,
    Memo,
    Toolchain,
    bringup_includes,
    build_environment,
    content_of,
    recalled_or_asked,
    stamps_of,
)

_GET = "pip install 'bringup[cuda]' (cuda-core and nvidia-cuda-nvrtc)"
# A probe is answered by what NVRTC was given, so what it asks for is given too.
_INCLUDE = rb'(?m)(?:^\s*#\s*include|\b__has_include)[ \t]*\(?[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)'
_NOT_FOUND = r'(?m)^(.*?)\(\d+\): .*(?:could not|cannot) open source file "([^"]+)"'
_HEADERS_AT_MOST = 4096


class Nvrtc:
    """The device compiler of a `cuda` target, for its first architecture."""

    def __init__(self, name: str, architectures: Sequence[str]) -> None:
        self._name = name
        self._architectures = tuple(architectures)
        self._known = KnownToolchain()

    def toolchain(self, memo: Memo) -> Toolchain:
        """NVRTC as it is now. Raises `MissingCompilerError` saying how to get it."""

        def find() -> Toolchain:
            where = (sys.prefix, settings.inherited("CUDA_HOME", "LD_LIBRARY_PATH"))
            return recalled_or_asked(memo, ("nvrtc", self._name, where), self._query)

        return self._known.get(None, find)

    def _query(self) -> Toolchain:
        nvrtc = _bindings()
        from cuda import pathfinder

        _, major, minor = nvrtc.nvrtcVersion()
        library = pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path
        folder = Path(library).parent
        files = [library, *sorted(map(str, folder.glob("libnvrtc-builtins.so*")))]
        version = f"NVRTC {major}.{minor}"
        return Toolchain(
            compiler=library,
            version=version,
            family="nvrtc",
            machine="nvidia",
            isa=self._architectures,
            identity=content_of(version, files),
            tools=stamps_of(files),
            environment=build_environment(),
            include_directories=(*bringup_includes(), *_toolkit_headers(folder)),
        ).fingerprinted()

    def flags(self, debug: Debug) -> tuple[str, ...]:
        inside = ("-lineinfo",) if debug.line_info else ()
        return ("-std=c++17", f"--gpu-architecture={self._architectures[0]}", *inside)

    def command(self, job: Job, flags: Sequence[str]) -> list[str]:
        """Return NVRTC's options, in the form of a command line."""
        given = [flag for flag in job.flags if not flag.startswith("-I")]
        return ["nvrtc", *flags, *(f"-D{macro}" for macro in job.macros), *given, job.file]

    def run(self, job: Job, command: Sequence[str]) -> Finished:
        """Compile into `job.output`, with `job.headers` and the PTX if it is wanted."""
        nvrtc, shown = _bindings(), tuple(command)
        source = read_bytes(os.path.join(job.folder, job.file))
        headers = _Headers((*include_directories(job.flags), *job.toolchain.include_directories))
        name = job.source.file_name
        folder = job.source.directory or str(job.folder)
        if clash := headers.add_those_of(source, folder):
            return Finished(1, f"{name}: error: {clash}", shown)
        while True:
            program = _Program(nvrtc, source, name, headers.contents())
            done = program.compile(command[1:-1])
            asked = re.search(_NOT_FOUND, program.log()) if not done else None
            if asked is None or not headers.add_asked(asked[2], asked[1], name, folder):
                break
        log = program.log()
        if not done:
            return Finished(1, log, shown)
        binary = program.cubin()
        if not defines_entry(binary, job.source.symbol):
            return Finished(1, f"{log}{name}: error: required symbol not defined", shown)
        (job.folder / job.output).write_bytes(binary)
        if job.debug.assembly:
            (job.folder / "kernel.ptx").write_bytes(program.ptx())
        _write_depfile(job, headers.paths())
        return Finished(0, log, shown)


def defines_entry(binary: bytes, symbol: str) -> bool:
    """Return whether a cubin has code of this name, by the ends of section names."""
    return f".text.{symbol}\0".encode() in binary


def _bindings() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except Exception as error:
        raise MissingCompilerError(
            f"no NVRTC for device code of target 'cuda': {first_line(error)}. Get it with: {_GET}"
        ) from error
    return nvrtc


def _toolkit_headers(beside: Path) -> list[str]:
    """Return where CUDA's own headers may be: the wheel's, the toolkit's."""
    home = settings.inherited("CUDA_HOME").get("CUDA_HOME", "/usr/local/cuda")
    folders = [beside.parent / "include", Path(home, "include")]
    both = [folder for known in folders for folder in (known, known / "cccl")]
    return [str(folder) for folder in both if folder.is_dir()]


class _Headers:
    """The headers by the names they are included by. NVRTC knows one of each name."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = tuple(folders)
        self._found: dict[str, str] = {}

    def paths(self) -> list[str]:
        return list(dict.fromkeys(self._found.values()))

    def contents(self) -> dict[str, bytes]:
        return {name: read_bytes(path) for name, path in self._found.items()}

    def _locate(self, name: str, beside: str) -> str | None:
        candidates = (os.path.join(folder, name) for folder in (beside, *self._folders))
        return next((os.path.abspath(path) for path in candidates if os.path.isfile(path)), None)

    def add_those_of(self, content: bytes, folder: str) -> str:
        """Add what this content includes, and what that does; return a complaint, if any."""
        waiting = [(content, folder)]
        while waiting and len(self._found) < _HEADERS_AT_MOST:
            content, folder = waiting.pop()
            for quoted, bracketed in re.findall(_INCLUDE, content):
                name = os.fsdecode(quoted or bracketed)
                path = self._locate(name, folder if quoted else "")
                if path is None:
                    continue
                known = self._found.setdefault(name, path)
                if known != path:
                    return f"NVRTC knows one header of a name, but {name!r} is {known} and {path}"
                if known is path:
                    waiting.append((read_bytes(path), os.path.dirname(path)))
        return ""

    def add_asked(self, name: str, by: str, source: str, folder: str) -> bool:
        """Add a header that was asked for; False if it was there already or is nowhere."""
        beside = folder if by == source else os.path.dirname(self._found.get(by, ""))
        path = self._locate(name, beside)
        if path is None or name in self._found:
            return False
        self._found[name] = path
        return not self.add_those_of(read_bytes(path), os.path.dirname(path))


class _Program:
    def __init__(self, nvrtc: Any, source: bytes, name: str, headers: dict[str, bytes]) -> None:
        self._nvrtc = nvrtc
        names = [os.fsencode(header) for header in headers]
        self._handle = self._checked(
            nvrtc.nvrtcCreateProgram(
                source, os.fsencode(name), len(names), list(headers.values()), names
            )
        )

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self._nvrtc.nvrtcDestroyProgram(self._handle)

    def _checked(self, answer: tuple[Any, ...]) -> Any:
        status, *values = answer
        if status != self._nvrtc.nvrtcResult.NVRTC_SUCCESS:
            _, text = self._nvrtc.nvrtcGetErrorString(status)
            raise MissingCompilerError(f"NVRTC does not work: {text.decode()}")
        return values[0] if values else None

    def compile(self, options: Sequence[str]) -> bool:
        (status,) = self._nvrtc.nvrtcCompileProgram(
            self._handle, len(options), [option.encode() for option in options]
        )
        return bool(status == self._nvrtc.nvrtcResult.NVRTC_SUCCESS)

    def log(self) -> str:
        size, get = self._nvrtc.nvrtcGetProgramLogSize, self._nvrtc.nvrtcGetProgramLog
        return self._read(size, get).decode(errors="replace").strip("\0 \n")

    def cubin(self) -> bytes:
        return self._read(self._nvrtc.nvrtcGetCUBINSize, self._nvrtc.nvrtcGetCUBIN)

    def ptx(self) -> bytes:
        return self._read(self._nvrtc.nvrtcGetPTXSize, self._nvrtc.nvrtcGetPTX).rstrip(b"\0")

    def _read(self, size: Any, get: Any) -> bytes:
        content = bytes(self._checked(size(self._handle)))
        self._checked(get(self._handle, content))
        return content


def _write_depfile(job: Job, headers: Sequence[str]) -> None:
    escaped = [re.sub(r"([\\ #])", r"\\\1", path).replace("$", "$$") for path in headers]
    words = " \\\n ".join(("source", *escaped))
    (job.folder / job.headers).write_bytes(os.fsencode(f"kernel: {words}\n"))
