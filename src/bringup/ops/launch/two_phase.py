"""`TwoPhaseLauncher`: functions that ask for a workspace first, as CANN's (aclnn/aclnn_base.h)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from typing import Any

import torch

from bringup.errors import ContractError, KernelError
from bringup.ops.launch.call_context import Libraries, Place, StreamLike, c_arguments, place_of
from bringup.ops.launch.memory import tensor_ptr

_FORMAT_ND = 2
_DATA_TYPES: dict[torch.dtype, int] = {
    torch.float32: 0, torch.float16: 1, torch.int8: 2, torch.int32: 3, torch.uint8: 4,
    torch.int16: 6, torch.uint16: 7, torch.uint32: 8, torch.int64: 9, torch.uint64: 10,
    torch.float64: 11, torch.bool: 12, torch.complex64: 16, torch.complex128: 17,
    torch.bfloat16: 27,
}  # fmt: skip


class TwoPhaseLauncher:
    """Calls pairs of functions of shared libraries: `aclnn<Name>GetWorkspaceSize(args...,
    &workspace_size, &executor)`, then `aclnn<Name>(workspace, workspace_size, executor, stream)`.

    Args:
        libraries: paths; a function is looked for in each, in order.

    Raises:
        FileNotFoundError: there is no such library.
        KernelError: it cannot be loaded.
    """

    def __init__(self, *libraries: str | os.PathLike[str]) -> None:
        self._libraries = Libraries(libraries)

    def __repr__(self) -> str:
        return f"TwoPhaseLauncher({', '.join(repr(str(path)) for path in self._libraries.paths)})"

    def launch(self, name: str, *, args: Iterable[Any] = (), stream: StreamLike = None) -> None:
        """Run both phases of `name`.

        The workspace comes from torch's allocator in the stream's order and is given back as soon
        as the second phase is under way; descriptors are destroyed then, also when a phase fails.

        Args:
            name: of the operator, with or without `aclnn`.
            args: what the first phase takes before its two results. A tensor becomes a descriptor
                (`aclCreateTensor` of the library or of one that it needs); everything else is as
                for `KernelLauncher.launch`.
            stream: a `torch.Stream`, None for the current one, or a native handle for functions
                without workspace.

        Raises:
            KernelError: a function is not there, or one of the two failed.
            ContractError: tensors are on several devices, or a native handle was given and a
                workspace is needed.
            TypeError, OverflowError: an argument cannot be what it says.
        """
        function = name if name.startswith("aclnn") else f"aclnn{name}"
        plan = self._libraries.get(f"{function}GetWorkspaceSize")
        run = self._libraries.get(function)
        args = tuple(args)
        place = place_of(function, args, stream)
        size, executor = ctypes.c_uint64(0), ctypes.c_void_p(None)
        with _Descriptors(function, self._libraries) as descriptors:
            values = c_arguments(function, args, descriptors.of)
            status = plan(*values, ctypes.byref(size), ctypes.byref(executor))
            self._check(f"{function}GetWorkspaceSize", status)
            workspace = _workspace(function, size.value, place)
            place.settle(function)
            address = ctypes.c_void_p(workspace.data_ptr())
            status = run(address, size, executor, ctypes.c_void_p(place.stream))
            self._check(function, status)
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        place.keep([*tensors, workspace])

    def _check(self, where: str, status: int) -> None:
        if status != 0:
            raise KernelError(f"{where} of {self._libraries}: launch failed with code {status}")


def _workspace(where: str, size: int, place: Place) -> torch.Tensor:
    if size > 0 and place.torch_stream is None and place.device.type != "cpu":
        raise ContractError(
            f"{where} needs a workspace of {size} bytes that lives until its stream has used it: "
            f"give the torch.Stream instead of the native handle {place.stream:#x}"
        )
    return torch.empty(size, dtype=torch.uint8, device=place.device)


class _Descriptors:
    """The aclTensor descriptors of one call, destroyed behind it."""

    def __init__(self, where: str, libraries: Libraries) -> None:
        self._where = where
        self._libraries = libraries
        self._made: list[int] = []

    def __enter__(self) -> _Descriptors:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._made:
            self._libraries.get("aclDestroyTensor")(ctypes.c_void_p(descriptor))

    def of(self, tensor: torch.Tensor) -> ctypes.c_void_p:
        create = self._libraries.find("aclCreateTensor")
        if create is None or self._libraries.find("aclDestroyTensor") is None:
            raise KernelError(
                f"{self._where}: {self._libraries} has no aclCreateTensor and aclDestroyTensor, so "
                "a tensor cannot be described; pass what the function takes, e.g. "
                "ops.tensor_ptr(x)"
            )
        code = _DATA_TYPES.get(tensor.dtype)
        if code is None:
            raise ContractError(f"{self._where}: {tensor.dtype} has no aclDataType")
        begin = tensor_ptr(tensor) - tensor.storage_offset() * tensor.itemsize
        sizes = (ctypes.c_int64 * tensor.dim())(*tensor.shape)
        strides = (ctypes.c_int64 * tensor.dim())(*tensor.stride())
        held = (ctypes.c_int64 * 1)(tensor.untyped_storage().nbytes() // tensor.itemsize)
        create.restype = ctypes.c_void_p
        descriptor = create(
            *(sizes, ctypes.c_uint64(tensor.dim()), ctypes.c_int32(code), strides),
            *(ctypes.c_int64(tensor.storage_offset()), ctypes.c_int32(_FORMAT_ND)),
            *(held, ctypes.c_uint64(1), ctypes.c_void_p(begin)),
        )
        if descriptor is None:
            raise KernelError(
                f"{self._where}: aclCreateTensor failed for a tensor of shape "
                f"{list(tensor.shape)} and dtype {tensor.dtype}"
            )
        self._made.append(descriptor)
        return ctypes.c_void_p(descriptor)
