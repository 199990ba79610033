"""One call of a kernel on the host from Python: its arguments packed as `bringup/kernel.h` says,
the kernel called, failures raised with the words of native/torch.

For processes without the library that links libtorch; with it, frames are native.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bringup import _native
from bringup.errors import ContractError, KernelError
from bringup.ops.schema.dtypes import dtype_number
from bringup.ops.schema.schema import SchemaArgument

__all__ = ["HostFrame"]

_CPU = 1
# (code, bits) of DLPack
_DLPACK: dict[torch.dtype, tuple[int, int]] = {
    torch.uint8: (1, 8),
    torch.uint16: (1, 16),
    torch.uint32: (1, 32),
    torch.uint64: (1, 64),
    torch.int8: (0, 8),
    torch.int16: (0, 16),
    torch.int32: (0, 32),
    torch.int64: (0, 64),
    torch.float16: (2, 16),
    torch.float32: (2, 32),
    torch.float64: (2, 64),
    torch.bfloat16: (4, 16),
    torch.complex64: (5, 64),
    torch.complex128: (5, 128),
    torch.bool: (6, 8),
}


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class _List(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_int64))


class HostFrame:
    """The arguments of one call in memory, alive as long as this is.

    Args:
        name: of the operator, for errors.
        arguments: of its schema.
        values: one for each, as the kernel shall see them.
        outputs: the tensors and lists of tensors behind them.

    Raises:
        ContractError: a tensor has a dtype that kernels cannot take.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[SchemaArgument],
        values: Sequence[Any],
        outputs: Sequence[torch.Tensor | list[torch.Tensor]],
    ) -> None:
        self._name = name
        self._kept: list[Any] = [values, outputs]
        packed = [self._pack(a, v) for a, v in zip(arguments, values, strict=True)]
        packed += [
            self._address(self._output(output, f"output {i}")) for i, output in enumerate(outputs)
        ]
        self._args = (ctypes.c_void_p * len(packed))(*packed)

    def run(self, kernel_id: int) -> None:
        """Calls the kernel. Raises `KernelError` when it refuses the call or fails, and
        `IndexError` when it is not in the kernel table any more.
        """
        self._ask(kernel_id)
        self._call(kernel_id)

    def _ask(self, kernel_id: int) -> None:
        _, reason, thrown = _native.core().ask_kernel(
            kernel_id, ctypes.addressof(self._args), len(self._args)
        )
        if thrown is not None:
            raise KernelError(
                f"{self._name}: can_implement threw: {thrown} (it should return the reason, or "
                "NULL)"
            )
        if reason is not None:
            raise KernelError(f"{self._name}: the kernel cannot run this call: {reason}")

    def _call(self, kernel_id: int) -> None:
        status, said, thrown = _native.core().call_kernel(
            kernel_id, ctypes.addressof(self._args), len(self._args)
        )
        if thrown is not None:
            raise KernelError(
                f"{self._name}: the kernel threw: {thrown} (a kernel should return a status and "
                "call ctx->set_error)"
            )
        if status != 0:
            raise KernelError(
                f"{self._name}: the kernel failed with status {status}: "
                f"{said or 'it gave no reason (ctx->set_error was not called)'}"
            )

    def _pack(self, argument: SchemaArgument, value: Any) -> int | None:
        if value is None:
            return None
        return self._address(_PACKERS[argument.type](self, argument, value))

    def _address(self, kept: Any) -> int:
        self._kept.append(kept)
        return ctypes.addressof(kept)

    def _tensor(self, tensor: torch.Tensor, what: str) -> _Tensor:
        if tensor.dtype not in _DLPACK:
            raise ContractError(
                f"{self._name}: kernels cannot take {tensor.dtype}, the dtype of {what}; cast it "
                "with .to()"
            )
        code, bits = _DLPACK[tensor.dtype]
        rank = tensor.dim()
        shape = (ctypes.c_int64 * rank)(*tensor.shape)
        strides = (ctypes.c_int64 * rank)(*tensor.stride())
        return _Tensor(
            tensor.data_ptr(),
            _Device(_CPU, 0),
            rank,
            _DataType(code, bits, 1),
            self._address(shape),
            self._address(strides),
            0,
        )

    def _tensor_argument(self, argument: SchemaArgument, value: torch.Tensor) -> _Tensor:
        return self._tensor(value, argument.name)

    def _output(self, output: torch.Tensor | list[torch.Tensor], what: str) -> Any:
        if isinstance(output, list):
            return self._tensor_list(output, what)
        return self._tensor(output, what)

    def _tensors(self, argument: SchemaArgument, value: Sequence[torch.Tensor]) -> _List:
        return self._tensor_list(value, argument.name)

    def _tensor_list(self, tensors: Sequence[torch.Tensor], what: str) -> _List:
        addresses = [self._address(self._tensor(tensor, what)) for tensor in tensors]
        return self._list((ctypes.c_void_p * len(addresses))(*addresses))

    def _list(self, items: Any) -> _List:
        return _List(self._address(items), len(items))

    def _integers(self, argument: SchemaArgument, value: Sequence[int]) -> _List:
        return self._list((ctypes.c_int64 * len(value))(*map(int, value)))

    def _floats(self, argument: SchemaArgument, value: Sequence[float]) -> _List:
        return self._list((ctypes.c_double * len(value))(*value))

    def _integer(self, argument: SchemaArgument, value: int) -> ctypes.c_int64:
        return ctypes.c_int64(int(value))

    def _float(self, argument: SchemaArgument, value: float) -> ctypes.c_double:
        return ctypes.c_double(value)

    def _dtype(self, argument: SchemaArgument, value: torch.dtype) -> ctypes.c_int64:
        return ctypes.c_int64(dtype_number(value))

    def _text(self, argument: SchemaArgument, value: str) -> Any:
        return ctypes.create_string_buffer(value.encode())


_PACKERS: dict[str, Callable[[HostFrame, SchemaArgument, Any], Any]] = {
    "Tensor": HostFrame._tensor_argument,
    "Tensor[]": HostFrame._tensors,
    "int": HostFrame._integer,
    "bool": HostFrame._integer,
    "float": HostFrame._float,
    "str": HostFrame._text,
    "ScalarType": HostFrame._dtype,
    "int[]": HostFrame._integers,
    "bool[]": HostFrame._integers,
    "float[]": HostFrame._floats,
}
