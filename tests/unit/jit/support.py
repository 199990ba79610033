"""Calling a kernel by hand (kernel.h's structures in ctypes, numpy arrays as tensors), and
compiling in another process.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bringup import _native, jit


class DLDevice(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class List(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_int64)]


_SET_ERROR = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)
_WORKSPACE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_CHUNK = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
_PARALLEL_FOR = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, _CHUNK, ctypes.c_void_p
)


class Context(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("abi_version", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("device", DLDevice),
        ("block_index", ctypes.c_int64),
        ("block_count", ctypes.c_int64),
        ("set_error", _SET_ERROR),
        ("workspace", _WORKSPACE),
        ("parallel_for", _PARALLEL_FOR),
        ("opaque", ctypes.c_void_p),
    ]


_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}


@dataclass
class Call:
    """One call of a kernel; keeps everything alive that the kernel is given."""

    message: str = ""
    chunks: list[tuple[int, int]] = field(default_factory=list)
    _kept: list[Any] = field(default_factory=list)

    def _keep(self, thing: Any) -> int:
        self._kept.append(thing)
        return ctypes.addressof(thing)

    def _tensor(self, array: np.ndarray[Any, Any]) -> DLTensor:
        rank = array.ndim
        shape = (ctypes.c_int64 * max(rank, 1))(*array.shape)
        strides = (ctypes.c_int64 * max(rank, 1))(*(s // array.itemsize for s in array.strides))
        self._kept += [array, shape, strides]
        dtype = DLDataType(_CODES[array.dtype.kind], 8 * array.itemsize, 1)
        return DLTensor(array.ctypes.data, DLDevice(1, 0), rank, dtype, shape, strides, 0)

    def _argument(self, value: Any) -> int | None:
        if value is None:
            return None
        if isinstance(value, np.ndarray):
            return self._keep(self._tensor(value))
        if isinstance(value, float):
            return self._keep(ctypes.c_double(value))
        if isinstance(value, int):
            return self._keep(ctypes.c_int64(value))
        if isinstance(value, str):
            return self._keep(ctypes.create_string_buffer(value.encode()))
        return self._keep(self._list(value))

    def _list(self, values: Sequence[Any]) -> List:
        if not values:
            return List(None, 0)
        if isinstance(values[0], np.ndarray):
            tensors = [self._keep(self._tensor(value)) for value in values]
            items: Any = (ctypes.c_void_p * len(values))(*tensors)
        elif isinstance(values[0], float):
            items = (ctypes.c_double * len(values))(*values)
        else:
            items = (ctypes.c_int64 * len(values))(*values)
        return List(self._keep(items), len(values))

    def context(self) -> Context:
        def set_error(_ctx: int, message: bytes) -> None:
            self.message = message.decode()

        def workspace(_ctx: int, size: int) -> int:
            raw = ctypes.create_string_buffer(size + 64)
            return -(-self._keep(raw) // 64) * 64

        def parallel_for(_ctx: int, n: int, grain: int, chunk: Any, user: int) -> None:
            for begin in range(0, n, max(grain, 1)):
                self.chunks.append((begin, min(n, begin + max(grain, 1))))
                chunk(*self.chunks[-1], user)

        callbacks = _SET_ERROR(set_error), _WORKSPACE(workspace), _PARALLEL_FOR(parallel_for)
        self._kept += callbacks
        return Context(ctypes.sizeof(Context), 1, None, DLDevice(1, 0), 0, 1, *callbacks, None)

    def run(self, kernel_id: int, *arguments: Any) -> int:
        """Calls a kernel of the native kernel table; its status."""
        function = ctypes.CFUNCTYPE(
            ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p
        )(_native.core().kernel_address(kernel_id))
        pointers = (ctypes.c_void_p * max(len(arguments), 1))(*map(self._argument, arguments))
        context = self.context()
        status: int = function(
            ctypes.addressof(pointers), len(arguments), ctypes.addressof(context)
        )
        return status


def run(binary: jit.Binary, *arguments: Any) -> None:
    """Calls a kernel that has to succeed."""
    call = Call()
    assert call.run(binary.kernel_id, *arguments) == 0, call.message


ADD = """
#include "bringup/kernel.h"
#ifndef N
#define N 1
#endif
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<float, 1> x(args[0]);
  for (int64_t i = 0; i < x.size(0); ++i) x(i) += N;
  return 0;
}
"""

REPOSITORY = Path(__file__).parents[3]

COMPILE_IN_A_NEW_PROCESS = """
import sys
from pathlib import Path
from bringup import jit
binary = jit.compile(jit.Source(Path(sys.argv[1])))
binary.kernel_id
print(binary.path)
"""


def forget() -> None:
    """Makes this process look at the disk again."""
    from bringup.jit.lookup import compilation

    compilation.forget()


def new_process(source: jit.Source, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", COMPILE_IN_A_NEW_PROCESS, str(source.path)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output_of(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return output.strip()
