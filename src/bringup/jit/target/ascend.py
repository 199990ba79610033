"""Huawei's Ascend NPUs: AscendC by the CANN toolkit's compiler. Tested with a stand-in only."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from types import MappingProxyType

from bringup import settings
from bringup.errors import MissingCompilerError
from bringup.jit.source.source import Kind
from bringup.jit.target.debug import Debug
from bringup.jit.target.target import Job, Target, register_target
from bringup.jit.target.toolchain import (
    KnownToolchain,
    Memo,
    Toolchain,
    ask,
    bringup_includes,
    build_environment,
    content_of,
    libraries_of,
    on_path,
    stamps_of,
)

_GET = (
    "install the CANN toolkit and source its set_env.sh, which sets ASCEND_HOME_PATH and puts "
    "bisheng on PATH; without it ops.ascendc_load builds for the simulated NPU"
)
_ARCHITECTURE = r"dav-[a-z0-9]+\Z"
_DEFAULT = "dav-2201"
_HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
_FOLDERS = ("bin", "compiler/ccec_compiler/bin")
_FLAGS = ("-x", "asc", "-std=c++17", "-O2", "-shared", "-fPIC")


class AscendTarget(Target):
    """`ascend` for Atlas A2 and A3 (dav-2201), or for another architecture: `ascend:dav-3510`.

    Args:
        name: of the target, and the compiler's in `jit.compile(target=...)`.
        architecture: as bisheng calls it.
    """

    languages: Mapping[str, str] = MappingProxyType({".cpp": "c++"})
    variables = (*_HOMES, "ASCEND_OPP_PATH")

    def __init__(self, name: str = "ascend", architecture: str = _DEFAULT) -> None:
        self.name = name
        self._architecture = architecture
        self._known = KnownToolchain()

    def variant(self, text: str) -> Target:
        """Return the same for another architecture. Raises `ValueError` for text that is none."""
        if not re.match(_ARCHITECTURE, text):
            raise ValueError(
                f"target '{self.name}:{text}': expected an architecture like {_DEFAULT} after the "
                "colon"
            )
        if text == self._architecture:
            return self  # one name for one thing: the name belongs to the key
        return AscendTarget(f"{self.name}:{text}", text)

    def toolchain(self, memo: Memo, kind: Kind = "host") -> Toolchain:
        """Return the toolkit's compiler as it is now. Raises `MissingCompilerError`."""
        asked_for = settings.inherited("PATH", "LD_LIBRARY_PATH", *self.variables)
        return self._known.get(asked_for, lambda: self._query(_find()))

    def _query(self, compiler: str) -> Toolchain:
        version = ask(compiler, "--version", get=_GET, variables=self.variables)
        libraries = libraries_of(compiler)
        return Toolchain(
            compiler=compiler,
            version=version.partition("\n")[0],
            family="bisheng",
            machine=self._architecture,
            isa=(self._architecture,),
            identity=content_of(version, (compiler, *libraries)),
            tools=stamps_of([compiler]),
            parts=stamps_of(libraries),
            environment=build_environment(self.variables),
            include_directories=bringup_includes(),
        ).fingerprinted()

    def flags(self, toolchain: Toolchain, language: str, debug: Debug) -> tuple[str, ...]:
        """Return what makes a shared library for the architecture; `ValueError` for sanitizers."""
        if debug.sanitizers:
            raise ValueError(
                f"target {self.name!r}: jit.Debug(sanitize={debug.sanitize!r}) is for compilers of "
                "the host; build for the simulated NPU, or run under the toolkit's mssanitizer"
            )
        inside = ("-g",) if debug.line_info else ()
        return (*_FLAGS, f"--npu-arch={self._architecture}", *inside)

    def command(self, job: Job) -> list[str]:
        """Return the command line of the toolkit's compiler, which is called like clang."""
        toolchain = job.toolchain
        return [
            toolchain.compiler, *self.flags(toolchain, "c++", job.debug),
            *(f"-D{macro}" for macro in job.macros),
            *(f"-I{directory}" for directory in toolchain.include_directories),
            *("-MD", "-MF", job.headers, "-MT", "kernel", "-o", job.output), job.file, *job.flags,
        ]  # fmt: skip


def _find() -> str:
    homes = [home for home in settings.inherited(*_HOMES).values() if home]
    folders = [os.path.join(home, folder) for home in homes for folder in _FOLDERS]
    found = on_path("bisheng", folders)
    if found is None:
        raise MissingCompilerError(
            f"no bisheng for target 'ascend': it is not on PATH, and {_HOMES[0]} is "
            f"{homes[0] if homes else 'not set'}. To get it: {_GET}"
        )
    return found


register_target(AscendTarget())
