"""Kernel sources become cached, loadable binaries.

In reading order: `Source` says what is compiled, `compile` makes a `Binary` of it or finds one,
`Binary.kernel_id` loads it. `freeze` and `frozen` forbid compiling; `cache`, `toolchain` and
`include_flags` show what there is. `Spec` is one kernel as a value: `record` notes those of a run,
`prebuild` builds them beforehand, `use_bundle` takes a package's, `end_warmup` warns from then on.

`Template` is a source whose dtypes, layouts and choices are macros, `params` the parameter set of a
call (docs/jit/templates.md). `tune` measures its tile sizes, `measured` anything else.

What is not named here is internal. Its packages, each knowing only those before it (the language of
`args=` and of conditions is `bringup._language`, below `jit` and `ops`):

- `files`: what identifies a file, the folders of a store, locks and marks
- `source`: what is compiled, and what its text says
- `target`: compilers, one module for each vendor
- `builder`: one build, its request and its key
- `load`: a binary becomes a kernel of this process
- `store`: builds on disk
- `lookup`: `compile`, from memory to the compiler; events, specs
- `template`: sources with macros, and what a call makes of them
- `ahead_of_time`: kernels built, brought along and measured before they are needed
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup._lazy import lazily
from bringup.jit import platform  # noqa: F401 - first: it refuses what is not Linux
from bringup.jit.target.cuda import CudaTarget
from bringup.jit.target.gnu import GnuTarget

# isort: split
# The targets above come first where targets are listed.
from bringup.jit.load.binary import Binary
from bringup.jit.lookup.compilation import cache, compile, freeze, frozen, toolchain  # noqa: A004
from bringup.jit.source.argument_check import Declared
from bringup.jit.source.source import Source
from bringup.jit.store.active_cache import use_bundle
from bringup.jit.store.cache import Cache, Entry
from bringup.jit.target.ascend import AscendTarget
from bringup.jit.target.compiler_process import Finished
from bringup.jit.target.debug import Debug
from bringup.jit.target.flags import Macro
from bringup.jit.target.target import Job, Target, register_target, target_of_arch, targets
from bringup.jit.target.toolchain import Memo, Toolchain, ToolchainInfo, include_flags
from bringup.jit.target.triton import TritonTarget

if TYPE_CHECKING:
    from bringup._language.signature import Argument, Layout, layout_of
    from bringup.jit.ahead_of_time.autotune import measured, tune, tuned
    from bringup.jit.ahead_of_time.prebuild import PrebuildReport, prebuild
    from bringup.jit.load.cuda_kernel import CudaKernel
    from bringup.jit.lookup.difference import differences
    from bringup.jit.lookup.spec import Recording, Spec, load_specs, record, save_specs
    from bringup.jit.lookup.warmup import end_warmup
    from bringup.jit.source.element import ElementExpression
    from bringup.jit.source.loop_language import LoopLanguage
    from bringup.jit.source.writer import Element, Operand, Writer, Written
    from bringup.jit.template.params import Field, Params, params
    from bringup.jit.template.template import BoundTemplate, Template

__all__ = [
    "Argument", "AscendTarget", "Binary", "BoundTemplate", "Cache", "CudaKernel", "CudaTarget",
    "Debug", "Declared", "Element", "ElementExpression", "Entry", "Field", "Finished", "GnuTarget",
    "Job", "Layout", "LoopLanguage", "Macro", "Memo", "Operand", "Params", "PrebuildReport",
    "Recording", "Source", "Spec", "Target", "Template", "Toolchain", "ToolchainInfo",
    "TritonTarget", "Writer", "Written", "cache", "compile", "differences", "end_warmup", "freeze",
    "frozen", "include_flags", "layout_of", "load_specs", "measured", "params", "prebuild",
    "record", "register_target", "save_specs", "target_of_arch", "targets", "toolchain", "tune",
    "tuned", "use_bundle",
]  # fmt: skip

if not TYPE_CHECKING:
    # What the first kernel of a process has no use for.
    __getattr__ = lazily(
        __name__,
        {
            "ahead_of_time.autotune": "measured tune tuned",
            "ahead_of_time.prebuild": "PrebuildReport prebuild",
            "bringup._language.signature": "Argument Layout layout_of",
            "load.cuda_kernel": "CudaKernel", "lookup.difference": "differences",
            "lookup.spec": "Recording Spec load_specs record save_specs",
            "lookup.warmup": "end_warmup", "source.element": "ElementExpression",
            "source.loop_language": "LoopLanguage",
            "source.writer": "Element Operand Writer Written",
            "template.params": "Field Params params", "template.template": "BoundTemplate Template",
        },
    )  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
