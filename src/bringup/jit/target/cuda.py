"""NVIDIA's GPUs: host entries by nvcc, device code by NVRTC or, for several models, nvcc."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from bringup import settings
from bringup.errors import MissingCompilerError, TargetError
from bringup.jit.files.elf import DEVICE_CODE, machine_of, this_machine
from bringup.jit.source.source import Kind
from bringup.jit.target.compiler_process import Finished
from bringup.jit.target.debug import Debug
from bringup.jit.target.flags import include_directories
from bringup.jit.target.gnu import GnuTarget
from bringup.jit.target.nvrtc import Nvrtc
from bringup.jit.target.target import Job, Target, find_target, register_target
from bringup.jit.target.toolchain import (
    KnownToolchain,
    Memo,
    Toolchain,
    ask,
    bringup_includes,
    content_of,
    on_path,
    recalled_or_asked,
    stamps_of,
)

_GET_NVCC = (
    "install NVIDIA's CUDA toolkit and put nvcc on PATH or set CUDA_HOME; device code "
    "(jit.Source(kind='device')) needs no nvcc, only: pip install 'bringup[cuda]'"
)
_ARCHITECTURES = r"sm_\d+[af]?(\+sm_\d+[af]?)*\Z"
_DEFAULT = "sm_90"
_FLAGS = ("-x", "cu", "-std=c++17", "-O3")
_LIBRARY = ("-shared", "-Xcompiler=-fPIC", "-Xlinker=-Bsymbolic,-z,defs,--as-needed")
_FATBIN = ("-fatbin", "-no-compress")  # its content tells which kernels it has
# nvcc runs its parts through a shell: with file, -I and -D in double quotes, all else as it is.
_ACTIVE_IN_QUOTES = r'[$`"\\\n]'
_ACTIVE = r"[^\w@%+=:,./-]"
_QUOTED_FLAG = r"-[ID]"
_WORDS = ("__global__", "__restrict__", "__grid_constant__")  # of declarations
_PROGRAMS = ("nvcc", "nvcc.profile", "cudafe++", "ptxas", "fatbinary", "nvlink", "bin2c")


class CudaTarget(Target):
    """`cuda`, or for other architectures than `sm_90`: `cuda:sm_80`, `cuda:sm_80+sm_90`.

    Args:
        name: of the target in `jit.compile(target=...)`.
        architectures: of GPUs, as nvcc calls them.
    """

    languages: Mapping[str, str] = MappingProxyType({".cu": "cuda"})
    words: Mapping[str, str] = MappingProxyType(dict.fromkeys(_WORDS, ""))
    takes_position = False

    def __init__(self, name: str = "cuda", architectures: tuple[str, ...] = (_DEFAULT,)) -> None:
        self.name = name
        self._architectures = architectures
        self._nvrtc = Nvrtc(name, architectures)
        self.known_toolchain = KnownToolchain()

    def variant(self, text: str) -> Target:
        """Return the same for other architectures, joined by `+`, or raise `ValueError`."""
        if not re.match(_ARCHITECTURES, text):
            raise ValueError(
                f"target '{self.name}:{text}': expected architectures like sm_90 or sm_80+sm_90 "
                "after the colon"
            )
        architectures = tuple(dict.fromkeys(text.split("+")))
        if architectures == self._architectures:
            return self  # one name for one thing: the name belongs to the key
        return type(self)(f"{self.name}:{text}", architectures)

    def check_loadable(self, path: Path, debug: Debug) -> None:
        """Raise `TargetError` for device code, which only a GPU loads."""
        if machine_of(path) == DEVICE_CODE:
            raise TargetError(
                f"{path} is device code for {DEVICE_CODE} ({self.name}), not for this machine "
                f"({this_machine()}): start it with jit.CudaKernel(binary).launch(grid, block, ...)"
            )
        super().check_loadable(path, debug)

    def covered(self) -> tuple[str, ...]:
        """Return the names of the target for each of several architectures."""
        family = self.name.partition(":")[0]
        several = self._architectures[1:] and self._architectures
        return tuple(find_target(f"{family}:{name}").name for name in several)

    def toolchain(self, memo: Memo, kind: Kind = "host") -> Toolchain:
        """Return nvcc with the host's compiler, or for device code NVRTC where it will do."""
        if kind == "host":
            return self._nvcc(memo)
        if self._architectures[1:]:
            return replace(self._nvcc(memo), family="fatbin").fingerprinted()
        try:
            return self._nvrtc.toolchain(memo)
        except MissingCompilerError as missing:
            try:
                return replace(self._nvcc(memo), family="fatbin").fingerprinted()
            except MissingCompilerError:
                raise missing from None

    def _nvcc(self, memo: Memo) -> Toolchain:
        host = self._host().toolchain(memo)
        asked_for = (
            host.fingerprint,
            settings.inherited("CUDA_HOME", "PATH", "LD_LIBRARY_PATH"),
            bringup_includes(),  # another installation may share the cache
        )

        def find() -> Toolchain:
            nvcc = _find_nvcc()
            which = (nvcc, self.name, asked_for)
            return recalled_or_asked(memo, which, lambda: self._query(nvcc, host))

        return self.known_toolchain.get(asked_for, find)

    def _host(self) -> GnuTarget:
        host = find_target("cpu")
        assert isinstance(host, GnuTarget)  # registered by us; replacing it is for hosts, too
        return host

    def _query(self, nvcc: str, host: Toolchain) -> Toolchain:
        version = ask(nvcc, "--version", get=_GET_NVCC)
        files = _files_of(nvcc)
        release = next((line for line in version.splitlines() if "release" in line), version)
        return replace(
            host,
            compiler=nvcc,
            version=release.strip(),
            family="nvcc",
            isa=self._architectures,
            identity=content_of(version + host.identity, files),
            tools=(*stamps_of(files), *host.tools),
            lacking=(),
            c_folders=(),
            cxx_folders=(),
            host=host.compiler,
        ).fingerprinted()

    def flags(self, toolchain: Toolchain, language: str, debug: Debug) -> tuple[str, ...]:
        """Return options: code of each architecture, PTX of the newest, or raise `ValueError`."""
        if debug.sanitizers:
            raise ValueError(
                f"target {self.name!r}: jit.Debug(sanitize={debug.sanitize!r}) is for compilers of "
                "the host; run the program under compute-sanitizer instead"
            )
        if toolchain.family == "nvrtc":
            return self._nvrtc.flags(debug)
        numbers = [name.removeprefix("sm_") for name in self._architectures]
        inside = ("-lineinfo", "-Xcompiler=-g") if debug.line_info else ("-Xlinker=-s",)
        fatbin = toolchain.family == "fatbin"
        return (
            *_FLAGS,
            *(_FATBIN if fatbin else _LIBRARY),
            *(f"-gencode=arch=compute_{number},code=sm_{number}" for number in numbers),
            f"-gencode=arch=compute_{numbers[-1]},code=compute_{numbers[-1]}",
            *(inside[:1] if fatbin and debug.line_info else () if fatbin else inside),
        )

    def command(self, job: Job) -> list[str]:
        """Return nvcc's command line, or for NVRTC its options as if they were one."""
        if job.toolchain.family == "nvrtc":
            return self._nvrtc.command(job, self.flags(job.toolchain, "cuda", job.debug))
        _check_for_shell(job)
        linking = f"--require-defined={job.source.symbol},--dependency-file={job.linked}"
        fatbin = job.toolchain.family == "fatbin"
        return [
            *self._compile_command(job, self.flags(job.toolchain, "cuda", job.debug)),
            *(() if fatbin else (f"-Xlinker={linking}",)),
            *("-MD", "-MF", job.headers, "-MT", "kernel", "-o", job.output),
            job.file,
            *(_compile_flags(job.flags) if fatbin else job.flags),
        ]

    def _compile_command(self, job: Job, flags: Sequence[str]) -> list[str]:
        toolchain = job.toolchain
        searched = [*toolchain.include_directories, *include_directories(job.flags)]
        mapped = [
            (str(job.folder), "."),
            (job.source.directory, "."),
            *((directory, "include") for directory in searched),
        ]
        return [
            toolchain.compiler,
            f"-ccbin={toolchain.host}",
            *flags,
            # A folder whose name nvcc would not pass on as it is shows in the binary.
            *(
                f"-Xcompiler=-ffile-prefix-map={directory}={shown}"
                for directory, shown in mapped
                if directory and "," not in directory and not re.search(_ACTIVE, directory)
            ),
            *(f"-D{macro}" for macro in job.macros),
            *(f"-I{directory}" for directory in toolchain.include_directories),
        ]

    def run(self, job: Job, command: Sequence[str]) -> Finished:
        """Run nvcc under the limits of the settings; NVRTC works in this process, without them."""
        if job.toolchain.family == "nvrtc":
            return self._nvrtc.run(job, command)
        return super().run(job, command)

    def dumps(self, job: Job) -> Mapping[str, Sequence[str]]:
        """Return the commands for `kernel.ptx`, of the first architecture, and `kernel.ii`.

        By the file that each writes; those that are wanted.
        """
        if job.toolchain.family == "nvrtc":
            return {}  # NVRTC writes its PTX in the run itself
        flags = ("-x", "cu", "-std=c++17", "-O3", f"-arch={self._architectures[0]}")
        command, given = self._compile_command(job, flags), _compile_flags(job.flags)
        wanted: dict[str, Sequence[str]] = {}
        if job.debug.assembly:
            wanted["kernel.ptx"] = [*command, "-ptx", "-o", "kernel.ptx", job.file, *given]
        if job.debug.preprocessed:
            wanted["kernel.ii"] = [*command, "-E", "-o", "kernel.ii", job.file, *given]
        return wanted


def _check_for_shell(job: Job) -> None:
    """Raise `ValueError` for what the shell behind nvcc would take for more than a word."""
    for flag in job.flags:
        active = _ACTIVE_IN_QUOTES if re.match(_QUOTED_FLAG, flag) else _ACTIVE
        if found := re.search(active, flag):
            raise ValueError(
                f"flag {flag!r}: nvcc runs its parts through a shell, which would take "
                f"{found[0]!r} for its own"
            )
    for path in (job.file, str(job.folder), *job.toolchain.include_directories):
        if found := re.search(_ACTIVE_IN_QUOTES, path):
            raise ValueError(
                f"{path}: nvcc runs its parts through a shell, which would take {found[0]!r} in "
                "the name for its own; use a folder without it"
            )


def _compile_flags(flags: Sequence[str]) -> list[str]:
    return [flag for flag in flags if not flag.startswith(("-l", "-L", "-Xlinker", "-Wl,"))]


def _find_nvcc() -> str:
    home = settings.inherited("CUDA_HOME").get("CUDA_HOME", "")
    folders = [os.path.join(home, "bin")] if home else []
    found = on_path("nvcc", (*folders, "/usr/local/cuda/bin"))
    if found is None:
        raise MissingCompilerError(
            "no nvcc for target 'cuda': it is not on PATH, CUDA_HOME is "
            f"{home or 'not set'}, and /usr/local/cuda/bin has none. To get it: {_GET_NVCC}"
        )
    return found


def _files_of(nvcc: str) -> list[str]:
    """Return the files of a build, asked of nvcc, which may be a wrapper."""
    plan = ask(nvcc, "--dryrun", "-c", "-x", "cu", os.devnull, get=_GET_NVCC, said_on_stderr=True)
    places: dict[str, str] = dict(re.findall(r"^#\$ (\w+)=(.*?)\s*$", plan, re.MULTILINE))
    folder, library = places.get("_HERE_", ""), places.get("NVVMIR_LIBRARY_DIR", "")
    files = [
        nvcc,
        *(os.path.join(folder, name) for name in _PROGRAMS),
        os.path.join(places.get("CICC_PATH", folder), "cicc"),
        *(f"{library}/{name}" for name in sorted(_listed(library))),
    ]
    return [path for path in files if os.path.isfile(path)]


def _listed(folder: str) -> list[str]:
    return os.listdir(folder) if os.path.isdir(folder) else []


register_target(CudaTarget())
