"""What both launchers share: C arguments, symbols, device, stream, and order on the stream."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import torch

from bringup import devices
from bringup.devices._driver_abi import DevicePropsStruct, open_table
from bringup.errors import ContractError, DeviceError, KernelError
from bringup.ops.launch.memory import Address

StreamLike: TypeAlias = torch.Stream | int | None

_HANDLES = ("npu_stream", "cuda_stream", "native_handle")  # what backends call the native stream
_C_VALUES = (ctypes._SimpleCData, ctypes.Structure, ctypes.Union, ctypes.Array, ctypes._Pointer)


class Libraries:
    """Libraries to look symbols up in, in order. Raises `FileNotFoundError`, `KernelError`."""

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        if not paths:
            raise TypeError("expected the path of at least one shared library")
        self.paths = tuple(Path(os.fspath(path)).expanduser().absolute() for path in paths)
        self._handles = tuple(map(_load, self.paths))
        self._found: dict[str, Any] = {}

    def __str__(self) -> str:
        return ", ".join(map(str, self.paths))

    def find(self, symbol: str) -> Any:
        """Return the function `symbol`, which returns an int32; None when no library exports it."""
        if symbol not in self._found:
            for handle in self._handles:
                if hasattr(handle, symbol):
                    function = getattr(handle, symbol)
                    function.restype = ctypes.c_int32
                    self._found[symbol] = (function, handle)
                    break
            else:
                return None
        return self._found[symbol][0]

    def get(self, symbol: str) -> Any:
        """Return the same; `KernelError` when no library exports it."""
        function = self.find(symbol)
        if function is None:
            raise KernelError(
                f"Symbol {symbol!r} not found in {self}; `nm -D` shows what a library exports"
            )
        return function

    def beside(self, symbol: str, other: str) -> Any:
        """Return the function `other` of the library that has `symbol`, or None."""
        self.get(symbol)
        return getattr(self._found[symbol][1], other, None)


def _load(path: Path) -> ctypes.CDLL:
    if not path.is_file():
        raise FileNotFoundError(
            2, "no such kernel library; build it, or use ops.ascendc_load", str(path)
        )
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise KernelError(f"the kernel library {path} cannot be loaded: {error}") from error


def c_arguments(where: str, args: Sequence[Any], tensor: Callable[[Any], Any]) -> list[Any]:
    """Return C arguments, of a tensor `tensor(it)`. Raises `TypeError`, `OverflowError`."""
    values: list[Any] = []
    for index, value in enumerate(args):
        if isinstance(value, torch.Tensor):
            values.append(tensor(value))
        elif isinstance(value, int):
            if not -(2**63) <= value < 2**64:
                raise OverflowError(f"{where}: argument {index} is {value}, beyond 64 bits")
            values.append(ctypes.c_uint64(value))
        elif isinstance(value, float):
            values.append(ctypes.c_double(value))
        elif value is None:
            values.append(ctypes.c_void_p(None))
        elif isinstance(value, _C_VALUES):
            values.append(value)
        else:
            raise TypeError(
                f"{where}: argument {index} is a {type(value).__name__} ({value!r}); expected a "
                "tensor, an int, a float, None, a typed number such as ops.i32(n), or a value of "
                "ctypes"
            )
    return values


@dataclass(frozen=True)
class Place:
    """Where one call goes."""

    device: torch.device  # of the tensors; cpu when there is neither a tensor nor a driver
    stream: int  # the native handle; 0 is the default stream, or none at all on cpu
    torch_stream: torch.Stream | None  # the same as an object, where there is one
    # The driver's function table when it runs host code, else None: the call belongs into the
    # stream, behind what is there.
    queued: int | None

    def settle(self, where: str) -> None:
        """Wait for the stream before host code runs. Raises `DeviceError` for unseen memory."""
        info = devices.loaded()
        if self.queued is None or info is None:
            return
        if not info.host_visible:
            raise DeviceError(
                f"{where}: the library runs on the host, which cannot see the memory of device "
                f"'{self.device}'; build the kernel with ops.ascendc_load"
            )
        if self.torch_stream is not None:
            self.torch_stream.synchronize()
        else:
            torch.accelerator.synchronize(self.device)

    def keep(self, tensors: Sequence[torch.Tensor]) -> None:
        """Keep memory from being used again before a stream other than the current one is done."""
        stream = self.torch_stream
        if stream is None or self.device.type == "cpu":
            return
        if stream != torch.accelerator.current_stream(self.device):
            for tensor in tensors:
                tensor.record_stream(stream)


def place_of(where: str, args: Sequence[Any], stream: StreamLike) -> Place:
    """Return the one device of the arguments, and the stream there. Raises `ContractError`."""
    device = _device_of(where, args)
    info = devices.loaded()
    ours = info is not None and device.type == info.device_name
    torch_stream = _as_stream(where, device, stream)
    handle = stream if isinstance(stream, int) else 0
    if torch_stream is not None:
        found = (getattr(torch_stream, name, None) for name in _HANDLES)
        handle = int(next(one for one in found if one is not None))
    queued = host_code_driver(info.path) if ours and info is not None else None
    return Place(device, handle, torch_stream, queued)


def _device_of(where: str, args: Sequence[Any]) -> torch.device:
    found: dict[torch.device, int] = {}
    for index, value in enumerate(args):
        if isinstance(value, (torch.Tensor, Address)):
            found.setdefault(value.device, index)
    if len(found) > 1:
        places = ", ".join(f"argument {index} on {device}" for device, index in found.items())
        raise ContractError(f"{where}: tensors must be on one device, got {places}")
    for device in found:
        return device
    info = devices.loaded()
    if info is None:
        return torch.device("cpu")
    return torch.device(info.device_name, torch.accelerator.current_device_index())


def _as_stream(where: str, device: torch.device, stream: StreamLike) -> torch.Stream | None:
    if isinstance(stream, torch.Stream):
        if stream.device != device:
            raise ContractError(
                f"{where}: the tensors are on {device}, the stream is of {stream.device}"
            )
        return stream
    if stream is None:
        return None if device.type == "cpu" else torch.accelerator.current_stream(device)
    if isinstance(stream, int):
        return None
    raise TypeError(
        f"{where}: stream is a {type(stream).__name__} ({stream!r}); expected a torch.Stream, a "
        "native handle as an int, or None for the current stream"
    )


@cache
def host_code_driver(path: Path) -> int | None:
    """Return the function table of the loaded driver at `path` when what it runs is host code."""
    if not path.is_file():  # a driver in Python
        return None
    driver = open_table(path)
    props = DevicePropsStruct(struct_size=ctypes.sizeof(DevicePropsStruct))
    if driver.function("device_props")(0, ctypes.byref(props)) != 0 or not props.runs_host_code:
        return None
    return driver.address
