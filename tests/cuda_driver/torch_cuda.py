"""Programs with tensors on torch's CUDA backend, where torch is a CPU build.

Stood in for: libcuda, by the library that records; torch's guard of devices and streams, by
torch_cuda.cpp; `aten::empty` on CUDA, by this module. Tensors, the dispatcher and the kit are as
they are. What torch's own allocator, CUDA graphs and kernels do is not shown.
"""

from __future__ import annotations

import ctypes as c
from typing import Any

import torch
from torch import library as torch_kernels

_CODES = {torch.float32: (2, 32), torch.float64: (2, 64), torch.int64: (0, 64)}
_kept: list[Any] = []


class _Tensor(c.Structure):
    _fields_ = (
        ("data", c.c_void_p), ("device_type", c.c_int32), ("device_id", c.c_int32),
        ("ndim", c.c_int32), ("code", c.c_uint8), ("bits", c.c_uint8), ("lanes", c.c_uint16),
        ("shape", c.POINTER(c.c_int64)), ("strides", c.POINTER(c.c_int64)), ("offset", c.c_uint64),
    )  # fmt: skip


class _Managed(c.Structure):
    _fields_ = (("tensor", _Tensor), ("context", c.c_void_p), ("deleter", c.c_void_p))


class Cuda:
    """torch's CUDA backend on the library in the place of libcuda.

    Args:
        backend: what torch_cuda.cpp was built as.
        libcuda: the library that records.
        models: the compute capability of each device.
    """

    def __init__(self, backend: str, libcuda: str, models: tuple[int, ...] = (90,)) -> None:
        self._backend = c.CDLL(backend)
        self._backend.allocate.restype = self._backend.new_stream.restype = c.c_void_p
        self.api = c.CDLL(libcuda)
        self._backend.install(libcuda.encode(), len(models))
        torch.cuda._lazy_init = lambda: None  # type: ignore[assignment]
        torch.cuda.device_count = lambda: len(models)  # type: ignore[assignment]
        torch.cuda.get_device_capability = (  # type: ignore[assignment]
            lambda device: divmod(models[device], 10)
        )
        torch_kernels.impl("aten::empty.memory_format", "cuda", self._empty)

    def _empty(
        self, size: list[int], *, dtype: Any = None, device: Any = None, **_: Any
    ) -> torch.Tensor:
        return self.empty(size, dtype or torch.float32, device.index or 0)

    def empty(self, size: Any, dtype: torch.dtype = torch.float32, device: int = 0) -> torch.Tensor:
        """A tensor in the device's memory."""
        code, bits = _CODES[dtype]
        count = torch.Size(size).numel()
        address = self._backend.allocate(device, c.c_size_t(max(count, 1) * bits // 8))
        shape = (c.c_int64 * max(len(size), 1))(*size)
        held = _Managed(_Tensor(address, 2, device, len(size), code, bits, 1, shape))
        _kept.append((held, shape))
        new = c.pythonapi.PyCapsule_New
        new.restype, new.argtypes = c.py_object, (c.c_void_p, c.c_char_p, c.c_void_p)
        made: torch.Tensor = torch.from_dlpack(new(c.addressof(held), b"dltensor", None))
        return made

    def tensor(self, values: list[float], device: int = 0) -> torch.Tensor:
        """A float32 tensor of these."""
        made = self.empty([len(values)], device=device)
        c.memmove(made.data_ptr(), (c.c_float * len(values))(*values), 4 * len(values))
        return made

    def values(self, tensor: torch.Tensor) -> list[float]:
        """What a float32 tensor holds when its device has done its work."""
        for device in range(torch.cuda.device_count()):
            self._backend.synchronize(device)
        return list((c.c_float * tensor.numel()).from_address(tensor.data_ptr()))

    def new_stream(self, device: int = 0) -> c.c_void_p:
        """Make a stream, torch's current one of that device from now on."""
        queue = c.c_void_p(self._backend.new_stream(device))
        self._backend.set_stream(device, queue)
        return queue

    @property
    def current_device(self) -> int:
        return int(self._backend.current_device())
