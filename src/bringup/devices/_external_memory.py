"""Memory that did not come from torch's allocators: host memory for copies, and pointers."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from types import ModuleType
from typing import TYPE_CHECKING

from bringup import _native
from bringup.devices import _load
from bringup.errors import DeviceError, first_line

if TYPE_CHECKING:
    import torch


class PointerKind(Enum):
    """Whose memory an address lies in."""

    UNKNOWN = 0
    DEVICE = 1
    HOST = 2


@dataclass(frozen=True)
class PointerInfo:
    """What a driver knows of an address.

    Attributes:
        kind: device memory, pinned or registered host memory, or neither.
        device: of device memory; None otherwise.
        base: where the allocation begins; 0 when unknown.
        bytes: the allocation's size; 0 when unknown.
    """

    kind: PointerKind
    device: torch.device | None
    base: int
    bytes: int


@contextmanager
def register_host_memory(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Make the memory of a cpu tensor as good as pinned for copies, without a copy of it. Returns a
    context manager that gives the tensor.

    Within the block `tensor.is_pinned()` is true, and copies with `non_blocking=True` do not wait.
    Its end waits for them.

    Args:
        tensor: on cpu, with at least one element; all of its storage is registered.

    Raises:
        DeviceError: no driver is loaded, or it cannot register memory, or a part of the memory is
            pinned or registered already. At the end of the block: a copy failed, or the driver did
            not unregister the memory; that stays allocated then, and later calls try again.
        ValueError: the tensor is not on cpu, or it has no memory.
    """
    native = loaded_native("devices.register_host_memory")
    if tensor.device.type != "cpu":
        raise ValueError(
            f"expected a tensor on cpu to register its memory, got one on {tensor.device}"
        )
    storage = tensor.untyped_storage()
    address, size = storage.data_ptr(), storage.nbytes()
    if size == 0:
        raise ValueError("expected a tensor with memory to register, got one of 0 bytes")
    _unregister_refused(native)
    try:
        native.register_host_memory(address, size)
    except RuntimeError as error:
        raise DeviceError(first_line(error)) from None
    torch = importlib.import_module("torch")
    memory = torch.empty(0, dtype=torch.uint8).set_(storage)
    try:
        yield tensor
    finally:
        _unregister(native, memory)


# What is registered still: as long as it is, nothing else may come to lie there.
_refused: list[torch.Tensor] = []


def _unregister(native: ModuleType, memory: torch.Tensor) -> None:
    try:
        native.unregister_host_memory(memory.data_ptr())
    except RuntimeError as error:
        if memory.is_pinned():
            _refused.append(memory)
        raise DeviceError(first_line(error)) from None


def _unregister_refused(native: ModuleType) -> None:
    again = [_refused.pop() for _ in range(len(_refused))]
    for memory in again:
        with suppress(DeviceError):
            _unregister(native, memory)


def pointer_info(address: int) -> PointerInfo:
    """Return whose memory an address lies in, as the loaded driver says.

    Args:
        address: any number, e.g. `tensor.data_ptr()`.

    Raises:
        DeviceError: no driver is loaded, it cannot say, or its answer contradicts itself.
    """
    native = loaded_native("devices.pointer_info")
    try:
        found = native.pointer_info(address)
    except RuntimeError as error:
        raise DeviceError(first_line(error)) from None
    if found is None:
        raise DeviceError(
            "the driver cannot say whose memory an address lies in: it has no pointer_info"
            " (BRINGUP_HAS_POINTERS of bringup/driver.h)"
        )
    number, index, base, size = found
    kind = PointerKind(number)
    device = None
    if kind is PointerKind.DEVICE:
        info = _load.loaded()
        assert info is not None
        device = importlib.import_module("torch").device(info.device_name, index)
    return PointerInfo(kind, device, base, size)


def loaded_native(what: str) -> ModuleType:
    """Return the native functions of the loaded driver for `what`. Raises `DeviceError`."""
    if _load.loaded() is None:
        raise DeviceError(f"{what}: no driver is loaded; devices.load_driver() loads one")
    native: ModuleType = _native.torch_library(what).devices
    return native
