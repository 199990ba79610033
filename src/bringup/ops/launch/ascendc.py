"""`ascendc_load`: AscendC sources, with the exports that the vendor's build system generates."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from bringup import devices, jit
from bringup.jit.source.lexer import without_comments
from bringup.ops.kernel.kernel_source import locate
from bringup.ops.launch.call_context import host_code_driver
from bringup.ops.launch.launcher import KernelLauncher

_KERNEL = re.compile(r"\b__global__\b(?:\s+(?:__\w+__|\[\w+\]|inline|static))*\s+void\s+(\w+)\s*\(")
_PARAMETER = re.compile(r"(?P<type>.*[\s*&>])(?P<name>[A-Za-z_]\w*)\s*\Z", re.DOTALL)
_NO_MACROS: Mapping[str, jit.Macro] = MappingProxyType({})

# What the samples ask to know that `<<<>>>` is not there.
_ON_HOST: Mapping[str, jit.Macro] = {"ASCENDC_CPU_DEBUG": 1, "__CCE_KT_TEST__": 1}

_HOST_TEXT = """\
#include <exception>
#include "{file}"
#include "bringup/ascendc/launch.h"
{launches}"""
_HOST_LAUNCH = """
BRINGUP_ASCENDC_EXPORT uint32_t aclrtlaunch_{name}(uint32_t block_dim, void* stream{parameters}) {{
  return bringup::ascendc::launch("{name}", &{name}, block_dim, stream{arguments});
}}
BRINGUP_ASCENDC_EXPORT int32_t bringup_ascendc_parameters_{name}(
    const bringup::ascendc::Parameter** found) {{
  return bringup::ascendc::parameters(&{name}, found);
}}
"""
_DEVICE_TEXT = """\
#include "{file}"
{launches}"""
_DEVICE_LAUNCH = """
extern "C" uint32_t aclrtlaunch_{name}(uint32_t block_dim, void* stream{parameters}) {{
  {name}<<<block_dim, nullptr, stream>>>({names});
  return 0;
}}
"""


@dataclass(frozen=True)
class _Kernel:
    """A `__global__` function: its name, and the type and name of each parameter."""

    name: str
    parameters: tuple[tuple[str, str], ...]

    def launch(self, template: str) -> str:
        return template.format(
            name=self.name,
            parameters="".join(f", {kind} {name}" for kind, name in self.parameters),
            arguments="".join(f", {name}" for _, name in self.parameters),
            names=", ".join(name for _, name in self.parameters),
        )

    def seen_by_host(self) -> _Kernel:
        """With parameters as host code declares them: without address spaces."""
        words = [(re.sub(r"\b__gm__\s*", "", kind), name) for kind, name in self.parameters]
        return _Kernel(
            self.name,
            tuple((re.sub(r"\bGM_ADDR\b", "uint8_t*", kind), name) for kind, name in words),
        )


def ascendc_load(
    name: str,
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    macros: Mapping[str, jit.Macro] = _NO_MACROS,
    flags: Iterable[str] = (),
    target: str | None = None,
) -> KernelLauncher:
    """Build AscendC sources, or find them in the cache; return a launcher for their kernels.

    Without the vendor's toolkit, or when the loaded driver runs host code (the simulated NPU), the
    sources are built against bringup's own `kernel_operator.h`, which has the basic vector API. A
    launch then runs block by block, on the simulated NPU in its stream, otherwise on cpu.

    Args:
        name: what to call the library in messages.
        sources: one or more `.cpp` files with `__global__` functions; each is built by itself. A
            relative path is looked up beside the calling file, then in the current folder.
        macros: preprocessor macros.
        flags: more compiler options.
        target: "sim", or "ascend" (also "ascend:dav-3510") for the vendor's compiler; None chooses.

    Returns:
        A launcher; `launch("add_custom", block_dim=8, args=[x, y, z, ops.u32(n)])` starts a kernel.

    Raises:
        FileNotFoundError: there is no such source.
        ValueError: a source defines no kernel, or one whose parameters cannot be read.
        CompileError: a source does not compile.
        MissingCompilerError: there is no compiler for the target.
    """
    caller = sys._getframe(1)
    given = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    if not given:
        raise ValueError(f"ascendc_load({name!r}): expected at least one source file, got none")
    chosen, options = target or _target(), tuple(flags)
    paths = [locate(f"ascendc_load({name!r})", Path(path), caller) for path in given]
    return KernelLauncher(*(_build(name, path, macros, options, chosen) for path in paths))


def _target() -> str:
    info = devices.loaded()
    if info is not None and host_code_driver(info.path) is not None:
        return "sim"
    return "ascend" if jit.toolchain("ascend").path is not None else "sim"


def _build(
    name: str, path: Path, macros: Mapping[str, jit.Macro], flags: Sequence[str], target: str
) -> Path:
    kernels = _kernels_of(path)
    included: tuple[str, ...] = (f"-iquote{path.parent}",)
    if target.partition(":")[0] == "ascend":
        launches = "".join(k.seen_by_host().launch(_DEVICE_LAUNCH) for k in kernels)
        text = _DEVICE_TEXT.format(file=path.name, launches=launches)
    else:
        launches = "".join(kernel.launch(_HOST_LAUNCH) for kernel in kernels)
        text = _HOST_TEXT.format(file=path.name, launches=launches)
        macros = {**_ON_HOST, **macros}
        included = (*included, *(f"{flag}/bringup/ascendc" for flag in jit.include_flags()))
    source = jit.Source(
        text=text, name=f"{name}.{path.stem}.cpp", entry=kernels[0].name, abi="ascendc"
    )
    return jit.compile(source, macros=macros, target=target, flags=(*included, *flags)).path


def _kernels_of(path: Path) -> list[_Kernel]:
    text = without_comments(path.read_text(encoding="utf-8", errors="replace"))
    kernels = [
        _Kernel(match[1], _parameters(f"{path}: kernel {match[1]!r}", text, match.end()))
        for match in _KERNEL.finditer(text)
    ]
    defined = {kernel.name: kernel for kernel in kernels}  # a declaration is the same again
    if not defined:
        raise ValueError(
            f"{path} defines no kernel: expected a function like "
            'extern "C" __global__ __aicore__ void add_custom(GM_ADDR x, ...)'
        )
    return list(defined.values())


def _parameters(where: str, text: str, start: int) -> tuple[tuple[str, str], ...]:
    """Return the parameters of the list that begins at `start`, just behind its parenthesis."""
    parts, depth, begin = [], 0, start
    for index in range(start, len(text)):
        character = text[index]
        if depth == 0 and character in ",)":
            parts.append(text[begin:index].strip())
            begin = index + 1
            if character == ")":
                break
        depth += (character in "(<[{") - (character in ")>]}")
    else:
        raise ValueError(f"{where}: its parameter list has no end")
    if parts == [""] or parts == ["void"]:
        return ()
    return tuple(_parameter(where, part) for part in parts)


def _parameter(where: str, text: str) -> tuple[str, str]:
    match = _PARAMETER.match(text)
    if match is None:
        raise ValueError(f"{where}: cannot read parameter {text!r}; expected a type and a name")
    return " ".join(match["type"].split()), match["name"]
