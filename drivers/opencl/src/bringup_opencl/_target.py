"""The jit target `opencl`: OpenCL C, built by the runtime's own compiler.

What is kept is the file that the driver loads: three lines, then the program as the runtime gave it
for this model of device. Importing this registers the target.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from bringup import jit
from bringup.errors import MissingCompilerError
from bringup_opencl._library import Device, OpenCLError, devices
from bringup_opencl._writer import OpenCLWriter

__all__ = ["OpenCLTarget"]

_GET = "a vendor's OpenCL driver, or PoCL for the processor: apt-get install pocl-opencl-icd"
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
_SPACES = ("kernel", "global", "constant", "local", "private")
_WORDS = {
    **dict.fromkeys((*_SPACES, *(f"__{one}" for one in _SPACES)), ""),
    **{f"u{one}": f"unsigned {one}" for one in ("char", "short", "int", "long")},
}


class OpenCLTarget(jit.Target):
    """`opencl`, for the first device that there is, or `opencl:MODEL` for one that a driver's
    `arch` names.
    """

    languages: Mapping[str, str] = MappingProxyType({".cl": "opencl"})
    words: Mapping[str, str] = MappingProxyType(_WORDS)
    takes_position = False
    host_library = False
    models = True

    def __init__(self, model: str = "") -> None:
        """`model`: of the device, behind the dash of its `arch`."""
        self.name = f"opencl:{model}" if model else "opencl"
        self._model = model
        self._known: jit.Toolchain | None = None

    @property
    def writer(self) -> jit.Writer:
        """Return the writer of entries in OpenCL C."""
        return OpenCLWriter()

    def variant(self, text: str) -> jit.Target:
        """Return the same for another model."""
        return OpenCLTarget(text)

    def _device(self) -> Device:
        try:
            found = [one for one in devices() if self._model in ("", one.model)]
        except OpenCLError as error:
            raise MissingCompilerError(f"{error}. Get {_GET}") from error
        if not found:
            raise MissingCompilerError(
                f"target {self.name!r}: this machine has no such device"
                if self._model
                else f"no OpenCL device. Get {_GET}"
            )
        return found[0]

    def toolchain(self, memo: jit.Memo, kind: str = "device") -> jit.Toolchain:
        """Return the compiler of the runtime. Raises `MissingCompilerError` where there is none."""
        if self._known is None:
            device = self._device()
            self._known = jit.Toolchain(
                compiler="libOpenCL.so.1",
                version=device.description,
                family="opencl",
                machine="opencl",
                isa=(device.model,),
                identity=device.description,
                fingerprint="",
                include_directories=_includes(),
            ).fingerprinted()
        return self._known

    def flags(self, toolchain: jit.Toolchain, language: str, debug: jit.Debug) -> tuple[str, ...]:
        """Return the options of every build. Raises `ValueError` for sanitizers."""
        if debug.sanitizers:
            raise ValueError(f"target {self.name!r}: there are no sanitizers for device code")
        rounded = ("-cl-fp32-correctly-rounded-divide-sqrt",)
        more = rounded if self._device().rounds_divisions else ()
        return ("-cl-std=CL1.2", "-cl-kernel-arg-info", *more)

    def command(self, job: jit.Job) -> list[str]:
        """Return the options of `clBuildProgram`, in the form of a command line."""
        options = self.flags(job.toolchain, "opencl", job.debug)
        return ["clBuildProgram", *options, *(f"-D{m}" for m in job.macros), *job.flags, job.file]

    def declaration(self, source: jit.Source, entry: str) -> tuple[jit.Declared, ...] | None:
        """Return the parameters but for memory of the block, which a launch gives by `shared=`."""
        declared = super().declaration(source, entry)
        if declared is None:
            return None
        return tuple(one for one in declared if not re.search(r"\b(__)?local\b", one.text))

    def check_symbol(self, path: Path, name: str) -> None:
        """Do nothing: `run` has asked the program for its kernels."""

    def check_loadable(self, path: Path, debug: jit.Debug) -> None:
        """Do nothing: the driver says what it cannot load."""

    def run(self, job: jit.Job, command: Sequence[str]) -> jit.Finished:
        """Build into `job.output`, and say in `job.headers` which headers there are."""
        text = (job.folder / job.file).read_bytes()
        defined = "".join(f"#define {macro.replace('=', ' ', 1)}\n" for macro in job.macros)
        name = job.source.file_name
        macros = {f"-D{macro}" for macro in job.macros}  # they stand in the text
        given = [flag for flag in command[1:-1] if flag not in macros]
        folder = job.source.directory or str(job.folder)
        options = shlex.join([*given, f"-I{folder}", *jit.include_flags()])
        try:
            built = self._device().build(f'{defined}#line 1 "{name}"\n'.encode() + text, options)
        except OpenCLError as error:
            return jit.Finished(1, f"{name}: error: {error}", tuple(command))
        if not built.binary:
            # As compilers for the host say it; PoCL has the kind of a diagnostic first.
            log = re.sub(r"(?m)^(error|warning|note): (\S+:\d+:\d+): ", r"\2: \1: ", built.log)
            said = log if " error: " in log else f"{name}: error: {log}"
            return jit.Finished(1, said, tuple(command))
        if job.source.symbol not in built.kernels:
            words = f"it has {', '.join(built.kernels) or 'none'}"
            log = f"{name}: error: required symbol {job.source.symbol} not defined: {words}"
            return jit.Finished(1, log, tuple(command))
        header = b"BRINGUPCL1\nbinary\n\n"
        (job.folder / job.output).write_bytes(header + built.binary)
        folders = [folder, *(flag[2:] for flag in job.flags if flag.startswith("-I")), *_includes()]
        read = " \\\n ".join(["source", *_headers(text, folders)])
        (job.folder / job.headers).write_text(f"kernel: {read}\n")
        return jit.Finished(0, built.log, tuple(command))


def _includes() -> tuple[str, ...]:
    """Return where bringup/random.h is."""
    return tuple(flag.removeprefix("-I") for flag in jit.include_flags())


def _headers(text: bytes, folders: Sequence[str]) -> list[str]:
    """Return the files that a source includes, and those that these include."""
    found: list[str] = []
    waiting = [text]
    while waiting:
        for name in _INCLUDE.findall(waiting.pop()):
            paths = (Path(folder, name.decode()) for folder in folders)
            path = next((one.resolve() for one in paths if one.is_file()), None)
            if path is not None and str(path) not in found:
                found.append(str(path))
                waiting.append(path.read_bytes())
    return found


jit.register_target(OpenCLTarget())
