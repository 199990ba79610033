"""What the code around generated kernels calls: makes a kernel of a text and starts it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

import torch

from bringup import jit
from bringup._native import torch_library
from bringup.compiler.inductor.prelude import prelude
from bringup.errors import CompileError, DeviceError
from bringup.jit.target.target import loops_of

ENTRY = "bringup_nest"


def target_of(device: torch.device) -> str:
    properties = torch.get_device_module(device.type).get_device_properties(device)
    return jit.target_of_arch(properties.arch)


def known_language(device: torch.device) -> jit.LoopLanguage | None:
    """Return what loop nests for a device are written in; None where its target does not say."""
    return loops_of(target_of(device))


def has_lanes(device: torch.device) -> bool:
    """Return whether one worker of a device computes several elements side by side."""
    language = known_language(device)
    return language is not None and language.lanes > 1


def language_of(device: torch.device) -> jit.LoopLanguage:
    """Return what loop nests for a device are written in. Raises `DeviceError` where none is."""
    target, language = target_of(device), known_language(device)
    if language is None or not torch_library().devices.launches_values():
        lacks = (
            f"its target {target!r} has no language of loop nests (jit.Writer.loops)"
            if language is None
            else "its driver has no launch_values or loads no device code (bringup/driver.h)"
        )
        raise DeviceError(
            f"Inductor generates no code for device {device.type!r}: {lacks}. Compile with "
            "torch.compile(..., backend='bringup'), which runs the device's kernels and fuses by "
            "passes, or with backend='aot_eager'"
        )
    return language


def dtypes_of(device: torch.device) -> frozenset[torch.dtype]:
    from bringup.compiler.inductor.functions import TYPES

    found = torch.get_device_module(device.type).get_device_properties(device).dtypes
    return frozenset(found & TYPES.keys())


def generated_kernel(
    name: str,
    text: str,
    *,
    device: str,
    parameters: str,
    faults: Sequence[str],
    lines: Sequence[str] = (),
) -> Callable[..., None]:
    """Return a function that starts a generated kernel in the current stream.

    It is compiled in the background from now on; the first call waits for that.

    Args:
        name: for messages and profiles.
        text: the kernel's function, `bringup_nest`.
        device: what it is compiled for: every device of the same model runs it.
        parameters: the kinds of its parameters: "r", "w" and "b" the address of a tensor that is
            read, written, both; "d" and "l" the number in a tensor of the host, as double and
            int64; "i" an int64.
        faults: what a report of the kernel means.
        lines: what it was generated for: files and lines.
    """
    place = torch.device(device)
    building = _pool().submit(_built, name, text, place, parameters, tuple(faults), tuple(lines))
    return _Pending(building)


class _Pending:
    """Stands for a kernel that is being compiled."""

    def __init__(self, building: Future[Callable[..., None]]) -> None:
        self._building = building
        self._launch: Callable[..., None] | None = None

    def __call__(self, *values: Any) -> None:
        if self._launch is None:
            self._launch = self._building.result()
        self._launch(*values)


def _built(
    name: str,
    text: str,
    device: torch.device,
    parameters: str,
    faults: tuple[str, ...],
    lines: tuple[str, ...],
) -> Callable[..., None]:
    language = language_of(device)
    dtypes = torch.get_device_module(device.type).get_device_properties(device).dtypes
    whole = prelude(language, text, float64=torch.float64 in dtypes) + text
    operators, _, _ = name.rpartition("_")  # without the kernel's number
    source = jit.Source(
        text=whole, name=f"{operators}{language.suffix}", entry=ENTRY, abi="values", kind="device"
    )
    try:
        binary = jit.compile(source, target=target_of(device), flags=language.flags)
    except CompileError as error:
        error.args = (f"{error}\n{name} was generated for {', '.join(lines) or 'operators'}",)
        raise
    made: Callable[..., None] = torch_library().compiler.generated_kernel(
        kernel=binary.kernel_id,
        name=name,
        parameters=parameters,
        faults=list(faults),
        threads=language.threads,
        elements=language.elements,
        most_blocks=language.most_blocks,
    )
    return made


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="bringup-inductor")
