"""Refuse to capture code that torch.compile generated, which computes without operators, but for
kernels of a driver's device that the kit generated: these are recorded as they start.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from bringup.graphs._patched_function import attribute_replaced
from bringup.graphs._source_location import capture_error

_ENTRIES = (
    ("torch._inductor.output_code", "CompiledFxGraph", "__call__", "Inductor"),
    ("torch._inductor.output_code", "CompiledAOTI", "__call__", "AOTInductor"),
    ("torch.export.pt2_archive._package", "AOTICompiledModel", "__call__", "AOTInductor"),
    ("torch._C._aoti", "AOTIModelPackageLoader", "run", "AOTInductor"),
    ("torch._C._aoti", "AOTIModelPackageLoader", "boxed_run", "AOTInductor"),
    ("torch._C._aoti", "AOTIModelContainerRunnerCpu", "run", "AOTInductor"),
)
"""(module, class, method, who generated what it runs)."""

_Class = tuple[type, str, str]

_UNSEEN = re.compile(r"async_compile\.(?!wait\b)\w+\(|\b_?empty_strided_cpu\w*\(")
"""What Inductor's code says where it has kernels of its own, or memory of the host."""


@contextmanager
def generated_code_refused(recording: Callable[[], bool]) -> Iterator[Callable[[], None]]:
    """Make generated code raise `CaptureError` where `recording()` holds; give a function that
    looks again for classes imported since.
    """
    with ExitStack() as patches:
        replaced: set[tuple[type, str]] = set()

        def install() -> None:
            for owner, method, generator in _loaded():
                if (owner, method) in replaced:
                    continue
                replaced.add((owner, method))
                make = functools.partial(_guarded, generator=generator, recording=recording)
                patches.enter_context(attribute_replaced(owner, method, make))

        install()
        yield install


def _loaded() -> Iterator[_Class]:
    for module, name, method, generator in _ENTRIES:
        owner = getattr(sys.modules.get(module), name, None)
        if owner is not None and hasattr(owner, method):
            yield owner, method, generator


def is_recorded(code: Any) -> bool:
    """Return whether all that Inductor's code computes is operators and the kit's kernels."""
    on_device = torch._C._get_privateuse1_backend_name() in getattr(code, "device_types", ())
    return on_device and not _UNSEEN.search(getattr(code, "source_code", "async_compile.unknown("))


def _guarded(original: Any, generator: str, recording: Callable[[], bool]) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if recording() and not is_recorded(self):
            raise capture_error(
                f"this calls code that {generator} generated: its kernels for the cpu read and"
                " write memory without operators, and the capture would miss them. Compile with"
                ' backend="bringup" or "eager", keep all its tensors on the device (capturable=True'
                " of an optimizer), or call it outside the capture"
            )
        return original(self, *args, **kwargs)

    return call
