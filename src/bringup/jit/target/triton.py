"""Triton kernels for NVIDIA's and AMD's GPUs, built in this process without a GPU."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bringup.errors import MissingCompilerError, TargetError
from bringup.jit.files.elf import this_machine
from bringup.jit.source.source import Kind, Source
from bringup.jit.target.compiler_process import Finished
from bringup.jit.target.debug import Debug
from bringup.jit.target.target import Job, Target, register_target
from bringup.jit.target.toolchain import (
    KnownToolchain,
    Memo,
    Toolchain,
    build_environment,
    content_of,
    recalled_or_asked,
    stamps_of,
)

_GET = "pip install 'bringup[triton]'"
_DEFAULT = "sm_90"
_NVIDIA = r"sm_(\d+)[af]?\Z"
_AMD = r"gfx(\d+)[0-9a-f]{2}\Z"
_BINARIES = ("cubin", "hsaco")
_TEXTS = ("ptx", "amdgcn")

# Kernels of this process by their content; another process imports them by name.
_kernels: dict[str, Any] = {}


@dataclass(frozen=True)
class TritonKernel:
    """A kernel with all that Triton specialises it by, as a text."""

    module: str  # where the kernel can be imported from
    name: str  # its name there
    content: str  # what triton says of its source and of what it calls (`cache_key`)
    signature: Mapping[str, str]  # parameter -> `"*fp32"`, `"i32"`, ..., `"constexpr"`
    constants: Mapping[str, Any]  # constexpr parameter -> value
    options: Mapping[str, Any]  # of triton's compiler: `num_warps`, `num_stages`, ..

    @classmethod
    def of(
        cls,
        kernel: Any,
        signature: Mapping[str, str],
        constants: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> TritonKernel:
        """Return a `triton.jit` function, which this process keeps for its compiler."""
        _kernels[kernel.cache_key] = kernel
        return cls(
            kernel.fn.__module__,
            kernel.fn.__qualname__,
            kernel.cache_key,
            dict(signature),
            dict(constants),
            dict(options),
        )

    def source(self) -> Source:
        """Return what `jit.compile` takes. Raises `TypeError` for a constant without a text."""
        entry = self.name.rpartition(".")[2]
        text = json.dumps(asdict(self), sort_keys=True, indent=1)
        return Source(text=text, name=f"{entry}.triton", entry=entry, kind="device")

    def find(self) -> Any:
        """Return the kernel itself. Raises `LookupError` when it is not what it was."""
        known = _kernels.get(self.content)
        if known is not None:
            return known
        found: Any = importlib.import_module(self.module)
        for part in self.name.split("."):
            found = getattr(found, part)
        while not hasattr(found, "cache_key") and hasattr(found, "fn"):
            found = found.fn
        if found.cache_key != self.content:
            raise LookupError(f"{self.module}.{self.name} is another kernel than when it was asked")
        return found


class TritonTarget(Target):
    """`triton`, or for other GPUs than `sm_90`: `triton:sm_80`, `triton:gfx942`.

    Args:
        name: of the target in `jit.compile(target=...)`.
        architecture: of the GPU: `sm_90`, `gfx942`.
    """

    languages: Mapping[str, str] = MappingProxyType({".triton": "triton"})

    def __init__(self, name: str = "triton", architecture: str = _DEFAULT) -> None:
        self.name = name
        self._architecture = architecture
        self._known = KnownToolchain()

    def variant(self, text: str) -> Target:
        """Return the same for another GPU. Raises `ValueError`: the text is no architecture."""
        if not (re.match(_NVIDIA, text) or re.match(_AMD, text)):
            raise ValueError(
                f"target '{self.name}:{text}': expected an architecture like sm_90 or gfx942 after "
                "the colon"
            )
        return self if text == self._architecture else TritonTarget(f"{self.name}:{text}", text)

    def check_loadable(self, path: Path, debug: Debug) -> None:
        """Raise `TargetError`: only a GPU loads it."""
        raise TargetError(
            f"{path} is device code for {self._architecture} ({self.name}), not for this machine "
            f"({this_machine()}); on a GPU triton loads its own build of the kernel"
        )

    def toolchain(self, memo: Memo, kind: Kind = "device") -> Toolchain:
        """Return the installed triton. Raises `MissingCompilerError` saying how to get it."""

        def find() -> Toolchain:
            version, library = _installed()
            which = ("triton", self.name, version, library)
            return recalled_or_asked(memo, which, lambda: self._describe(version, library))

        return self._known.get(None, find)

    def _describe(self, version: str, library: str) -> Toolchain:
        return Toolchain(
            compiler=library,
            version=f"triton {version}",
            family="triton",
            machine="nvidia" if re.match(_NVIDIA, self._architecture) else "amd",
            isa=(self._architecture,),
            identity=content_of(version, [library]),
            tools=stamps_of([library]),
            environment=build_environment(self.variables),
        ).fingerprinted()

    def flags(self, toolchain: Toolchain, language: str, debug: Debug) -> tuple[str, ...]:
        """Return no options, or raise `ValueError` for sanitizers, which device code has not."""
        if debug.sanitizers:
            raise ValueError(f"target {self.name!r}: there are no sanitizers for device code")
        return ()

    def command(self, job: Job) -> list[str]:
        """Return what Triton gets, in the form of a command line."""
        return ["triton", f"--target={self._architecture}", job.file]

    def run(self, job: Job, command: Sequence[str]) -> Finished:
        """Compile into `job.output`, beside it the assembly and what a launch needs to know."""
        content = json.loads((job.folder / job.file).read_bytes())
        try:
            compiled = self._compile(TritonKernel(**content))
        except Exception as error:
            last = traceback.format_exception_only(error)[-1].strip()
            text = f"{job.source.file_name}: error: {last}"
            return Finished(1, text, tuple(command))
        for kind in _BINARIES:
            if kind in compiled.asm:
                (job.folder / job.output).write_bytes(compiled.asm[kind])
        for kind in _TEXTS:
            if kind in compiled.asm:
                (job.folder / f"kernel.{kind}").write_text(compiled.asm[kind])
        facts = {
            name: value
            for name, value in compiled.metadata._asdict().items()
            if isinstance(value, (str, int, float, bool))
        }
        (job.folder / "kernel.json").write_text(json.dumps(facts, indent=1, sort_keys=True))
        (job.folder / job.headers).write_text("kernel: source\n")
        return Finished(0, "", tuple(command))

    def _compile(self, kernel: TritonKernel) -> Any:
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
        from triton.compiler import compile as compile_kernel

        source = ASTSource(
            kernel.find(), signature=dict(kernel.signature), constexprs=dict(kernel.constants)
        )
        return compile_kernel(source, target=GPUTarget(*self._gpu()), options=dict(kernel.options))

    def _gpu(self) -> tuple[str, int | str, int]:
        """Return Triton's words for the architecture: backend, architecture, threads of a warp."""
        nvidia = re.match(_NVIDIA, self._architecture)
        if nvidia:
            return "cuda", int(nvidia[1]), 32
        amd = re.match(_AMD, self._architecture)
        assert amd is not None
        return "hip", self._architecture, 64 if int(amd[1]) < 10 else 32


def _installed() -> tuple[str, str]:
    """Version and native library of the installed triton, which is not imported for that."""
    try:
        spec = importlib.util.find_spec("triton")
    except ValueError:
        spec = None
    libraries = (
        sorted(Path(spec.origin).parent.glob("_C/libtriton*.so")) if spec and spec.origin else []
    )
    if not libraries:
        raise MissingCompilerError(
            f"no compiler for target 'triton': the triton package is not installed in "
            f"{sys.prefix}. Get it with: {_GET}"
        )
    from importlib import metadata  # it loads the parser of mail headers

    return metadata.version("triton"), str(libraries[0])


register_target(TritonTarget())
