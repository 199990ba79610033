"""What `save` writes and `load` reads of values: nests of numbers, texts and tensors as JSON, and
what a graph's file is made for.
"""

from __future__ import annotations

import dataclasses
import math
import platform
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from bringup.errors import CaptureError
from bringup.graphs._capture import is_current_stream_capturing

KIND = "saved graph"
VERSIONS = {"graph": 1, "kernels": 1, "weights": 1}
SAFETENSORS = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def facts(with_device: bool) -> dict[str, str]:
    """Return what decides whether a graph's nodes give the same bits here, or run at all."""
    instructions = torch.backends.cpu.get_cpu_capability()
    found = {"torch": torch.__version__, "a processor": f"{platform.machine()} {instructions}"}
    if with_device and "bringup.devices" in sys.modules:  # else no driver is loaded
        driver = sys.modules["bringup.devices"].loaded()
        if driver is not None:
            found |= {"device": driver.device_name, "driver": driver.description}
    return found


def refuse_in_capture(what: str) -> None:
    """Raise `CaptureError` while this thread captures: what is done here would be recorded."""
    if is_current_stream_capturing():
        raise CaptureError(f"{what}: a capture is under way on this thread; call it outside")


def binaries_of(graph: Any) -> dict[int, Any]:
    """Return what was built for kernels of a native graph, by node."""
    from bringup.jit.load.binary import loaded_binaries

    loaded = loaded_binaries()
    return {node: loaded[number] for node, number in graph.kernels(list(loaded)).items()}


def named_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers by name, shared ones by all of theirs."""
    parameters = module.named_parameters(remove_duplicate=False)
    return dict(parameters) | dict(module.named_buffers(remove_duplicate=False))


def layout(tensor: torch.Tensor) -> list[Any]:
    """Return a tensor's dtype, shape, strides and offset."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return [dtype, list(tensor.shape), list(tensor.stride()), tensor.storage_offset()]


def written(value: Any, tensor: Callable[[torch.Tensor], int]) -> Any:
    """Return a value for JSON; `tensor` numbers tensors. Raises `TypeError` naming what is none."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": struct.pack("<d", value).hex()}
    if type(value) is complex:
        return {"complex": [written(part, tensor) for part in (value.real, value.imag)]}
    if isinstance(value, torch.Tensor):
        return {"tensor": tensor(value)}
    if isinstance(value, (torch.dtype, torch.device)):
        return {type(value).__name__: str(value).removeprefix("torch.")}
    if isinstance(value, (list, tuple)):
        items = [written(item, tensor) for item in value]
        return items if isinstance(value, list) else {"tuple": items}
    if dataclasses.is_dataclass(value) and not isinstance(value, (type, Mapping)):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping) and all(type(key) is str for key in value):
        return {"dict": [[key, written(item, tensor)] for key, item in value.items()]}
    raise TypeError(f"a {type(value).__qualname__}")


def read(value: Any, tensors: Callable[[int], torch.Tensor]) -> Any:
    """Return what `written` was given; `tensors` gives those with a number."""
    if type(value) is list:
        return [read(item, tensors) for item in value]
    if type(value) is not dict:
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors(content)
    if kind == "tuple":
        return tuple(read(item, tensors) for item in content)
    if kind == "dict":
        return {str(key): read(item, tensors) for key, item in content}
    if kind == "float":
        return struct.unpack("<d", bytes.fromhex(content))[0]
    if kind == "complex":
        return complex(*(read(part, tensors) for part in content))
    return torch.device(content) if kind == "device" else dtype_of(content)


def dtype_of(name: str) -> torch.dtype:
    """Return a dtype by name. Raises `ValueError`."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is no dtype")
    return dtype
