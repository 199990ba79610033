"""`KernelLauncher`: kernels of a built library, started by name with raw arguments."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from bringup import settings
from bringup.errors import ContractError, KernelError
from bringup.ops.launch.call_context import Libraries, Place, StreamLike, c_arguments, place_of
from bringup.ops.launch.memory import tensor_ptr


class _DeclaredParameter(ctypes.Structure):
    """bringup::ascendc::Parameter of launch.h."""

    _fields_ = (("kind", ctypes.c_int32), ("size", ctypes.c_int32))


class KernelLauncher:
    """Starts kernels of shared libraries that export `aclrtlaunch_<name>(block_dim, stream, ...)`,
    as the vendor's toolkit and `ops.ascendc_load` build them.

    Args:
        libraries: paths; a kernel is looked for in each, in order.
        library_path: one more path, by the name that mindtorch_v2 has for it.

    Raises:
        FileNotFoundError: there is no such library.
        KernelError: it cannot be loaded.
    """

    def __init__(
        self, *libraries: str | os.PathLike[str], library_path: str | os.PathLike[str] | None = None
    ) -> None:
        named = () if library_path is None else (library_path,)
        self._libraries = Libraries((*libraries, *named))
        self._declared: dict[str, list[_DeclaredParameter] | None] = {}

    def __repr__(self) -> str:
        return f"KernelLauncher({', '.join(repr(str(path)) for path in self._libraries.paths)})"

    def launch(
        self, name: str, block_dim: int, args: Iterable[Any] = (), stream: StreamLike = None
    ) -> None:
        """Start the kernel `name` over `block_dim` blocks.

        A launch is asynchronous where the device is: what `args` point at has to stay until it has
        run. Tensors of this call are kept from being used again too early.

        Args:
            name: of the kernel, without `aclrtlaunch_`.
            block_dim: number of blocks, at least 1.
            args: the kernel's own parameters, in order. A tensor is its address (`ops.tensor_ptr`),
                an int is a `uint64_t`, a float a `double`, None a null pointer; `ops.i32(n)` and
                its like say another type, and values of ctypes are passed as they are.
            stream: a `torch.Stream`, a native handle as an int, or None for the current stream.

        Raises:
            KernelError: no library has the kernel, or it could not be started; for a kernel that
                fails later, the next synchronisation raises.
            ContractError: arguments are on several devices, or, where the library says what the
                kernel declares, do not fit that.
            TypeError, ValueError, OverflowError: an argument cannot be what it says.
        """
        where, args = f"kernel {name!r}", tuple(args)
        if isinstance(block_dim, bool) or not isinstance(block_dim, int):
            raise TypeError(
                f"{where}: block_dim is a {type(block_dim).__name__} ({block_dim!r}); expected int"
            )
        if not 1 <= block_dim < 2**32:
            raise ValueError(f"{where}: block_dim must be 1 to 4294967295, got {block_dim}")
        symbol = f"aclrtlaunch_{name}"
        function = self._libraries.get(symbol)
        values = c_arguments(where, args, lambda x: ctypes.c_void_p(tensor_ptr(x)))
        if (declared := self._parameters(name)) is not None:
            _fit(where, values, declared)
        place = place_of(where, args, stream)
        self._order(where, symbol, place)
        status = function(ctypes.c_uint32(block_dim), ctypes.c_void_p(place.stream), *values)
        if status != 0:
            self._raise_failure(where, symbol, status)
        place.keep([value for value in args if isinstance(value, torch.Tensor)])
        if settings.launch_blocking() and place.device.type != "cpu":
            torch.get_device_module(place.device).synchronize(place.device)

    def _parameters(self, name: str) -> list[_DeclaredParameter] | None:
        """Return what the kernel declares, if its library says it (one of `ascendc_load` does)."""
        if name not in self._declared:
            describe = self._libraries.find(f"bringup_ascendc_parameters_{name}")
            if describe is None:
                self._declared[name] = None
            else:
                found = ctypes.POINTER(_DeclaredParameter)()
                count = describe(ctypes.byref(found))
                self._declared[name] = found[:count]
        return self._declared[name]

    def _order(self, where: str, symbol: str, place: Place) -> None:
        """Let the launch run behind what its stream still has to do."""
        queue = None
        if place.queued is not None:
            queue = self._libraries.beside(symbol, "bringup_ascendc_queue")
        if queue is None:
            place.settle(where)
        else:
            queue(ctypes.c_void_p(place.queued), ctypes.c_int32(place.device.index))

    def _raise_failure(self, where: str, symbol: str, status: int) -> None:
        words = ""
        if say := self._libraries.beside(symbol, "bringup_ascendc_words"):
            say.restype = ctypes.c_char_p
            words = say().decode(errors="replace")
        raise KernelError(
            f"{where} of {self._libraries}: launch failed with code {status}"
            + (f": {words}" if words else "")
        )


_NAMES = {"p": "an address", "i": "an integer", "f": "a float", "s": "a struct"}
# What ctypes calls its types, by what they are.
_FORMATS = {
    **dict.fromkeys("bBhHiIlLqQ?cu", "i"),
    **dict.fromkeys("fdg", "f"),
    **dict.fromkeys("zZO", "p"),
}


def _fit(where: str, values: Sequence[Any], declared: Sequence[_DeclaredParameter]) -> None:
    """Raise `ContractError` for arguments that the kernel would read as something else."""
    if len(values) != len(declared):
        raise ContractError(f"{where} takes {len(declared)} arguments, got {len(values)}")
    for index, (value, parameter) in enumerate(zip(values, declared, strict=True)):
        kind, wanted = _kind(value), chr(parameter.kind)
        if isinstance(value, ctypes.c_uint64):  # an int: an address, or a number that has to fit
            fits = wanted == "p" or (wanted == "i" and _holds(value.value, parameter.size))
        else:
            fits = kind == wanted and (kind == "p" or ctypes.sizeof(value) == parameter.size)
        if not fits:
            prefix = {"i": "u", "f": "f"}.get(wanted)
            hint = f"; ops.{prefix}{8 * parameter.size}(x) would be one" if prefix else ""
            raise ContractError(
                f"{where}: argument {index} is {_NAMES[kind]} of {ctypes.sizeof(value)} bytes "
                f"({value!r}), the kernel takes {_NAMES[wanted]} of {parameter.size} bytes{hint}"
            )


def _kind(value: Any) -> str:
    code = getattr(value, "_type_", None)
    if isinstance(value, (ctypes._Pointer, ctypes.Array)) or code == "P":
        return "p"
    return _FORMATS.get(code, "s") if isinstance(code, str) else "s"


def _holds(bits: int, size: int) -> bool:
    """Return whether an integer of `size` bytes holds an int, perhaps negative."""
    return bits < 1 << (8 * size) or bits >= (1 << 64) - (1 << (8 * size - 1))
