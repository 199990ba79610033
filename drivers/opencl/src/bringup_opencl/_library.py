"""The OpenCL library, as far as building programs needs it, by ctypes."""

from __future__ import annotations

import ctypes as c
import functools
from dataclasses import dataclass
from typing import Any

__all__ = ["Device", "OpenCLError", "devices"]

_ALL = 0xFFFFFFFF
_PLATFORM_NOT_FOUND = -1001
_NAME, _VENDOR, _DRIVER_VERSION, _VERSION = 0x102B, 0x102C, 0x102D, 0x102F
_SINGLE_FP_CONFIG, _EXTENSIONS = 0x101B, 0x1030
_CORRECTLY_ROUNDED = 1 << 7
_LOG, _BINARY_SIZES, _BINARIES, _KERNEL_NAMES = 0x1183, 0x1165, 0x1166, 0x1168


class OpenCLError(RuntimeError):
    """A call of OpenCL failed, or there is none on this machine."""


@functools.cache
def _library() -> Any:
    try:
        library = c.CDLL("libOpenCL.so.1")
    except OSError as error:
        raise OpenCLError(f"there is no OpenCL: {error}") from error
    library.clCreateContext.restype = c.c_void_p
    library.clCreateProgramWithSource.restype = c.c_void_p
    return library


def _ask(program: c.c_void_p, question: int, size: int, answer: Any) -> None:
    get = _library().clGetProgramInfo
    code = get(program, c.c_uint(question), c.c_size_t(size), answer, None)
    if code != 0:
        raise OpenCLError(f"clGetProgramInfo failed with {code}")


@dataclass(frozen=True)
class Built:
    """What came of building a program.

    Attributes:
        log: what the compiler said.
        binary: the program, b"" where it does not build.
        kernels: the names of its kernels.
    """

    log: str
    binary: bytes = b""
    kernels: tuple[str, ...] = ()


class Device:
    """A device that programs are built for."""

    def __init__(self, handle: int) -> None:
        """`devices` makes them."""
        self._handle = c.c_void_p(handle)

    def text(self, question: int) -> str:
        """Return a text that `clGetDeviceInfo` has, or "" where it does not know the question."""
        room = c.c_size_t()
        get = _library().clGetDeviceInfo
        if get(self._handle, c.c_uint(question), c.c_size_t(0), None, c.byref(room)) != 0:
            return ""
        answer = c.create_string_buffer(room.value + 1)
        get(self._handle, c.c_uint(question), room, answer, None)
        return answer.value.decode(errors="replace")

    @property
    def description(self) -> str:
        """Return what a program's binary depends on: vendor, name, versions."""
        return " | ".join(map(self.text, (_VENDOR, _NAME, _VERSION, _DRIVER_VERSION)))

    @property
    def model(self) -> str:
        """Return what the driver's `arch` has behind its dash (`name_architecture` in driver.c)."""
        number = 0xCBF29CE484222325
        for question in (_VENDOR, _NAME, _VERSION, _DRIVER_VERSION):
            for byte in self.text(question).encode()[:511] + b"\0":
                number = (number ^ byte) * 0x100000001B3 % (1 << 64)
        return f"{number:016x}"

    @property
    def rounds_divisions(self) -> bool:
        """Return whether divisions and roots of floats can be correctly rounded."""
        bits = c.c_uint64()
        question = c.c_uint(_SINGLE_FP_CONFIG)
        _library().clGetDeviceInfo(self._handle, question, c.c_size_t(8), c.byref(bits), None)
        return bool(bits.value & _CORRECTLY_ROUNDED)

    @functools.cached_property
    def _context(self) -> c.c_void_p:
        code = c.c_int()
        made = _library().clCreateContext(
            None, c.c_uint(1), c.byref(self._handle), None, None, c.byref(code)
        )
        if code.value != 0:
            raise OpenCLError(f"clCreateContext failed with {code.value}")
        return c.c_void_p(made)

    def build(self, text: bytes, options: str) -> Built:
        """Return the program of a source in OpenCL C."""
        source, code = c.c_char_p(text), c.c_int()
        program = c.c_void_p(
            _library().clCreateProgramWithSource(
                self._context, c.c_uint(1), c.byref(source), None, c.byref(code)
            )
        )
        if code.value != 0:
            raise OpenCLError(f"clCreateProgramWithSource failed with {code.value}")
        try:
            status = _library().clBuildProgram(
                program, c.c_uint(1), c.byref(self._handle), options.encode(), None, None
            )
            log = self._log(program)
            if status != 0:
                return Built(log or f"error: clBuildProgram failed with {status}")
            return Built(log, _binary(program), tuple(_names(program).split(";")))
        finally:
            _library().clReleaseProgram(program)

    def _log(self, program: c.c_void_p) -> str:
        room, question = c.c_size_t(), c.c_uint(_LOG)
        get = _library().clGetProgramBuildInfo
        get(program, self._handle, question, c.c_size_t(0), None, c.byref(room))
        answer = c.create_string_buffer(room.value + 1)
        get(program, self._handle, question, room, answer, None)
        return answer.value.decode(errors="replace").strip()


def _binary(program: c.c_void_p) -> bytes:
    size = c.c_size_t()
    _ask(program, _BINARY_SIZES, 8, c.byref(size))
    content = c.create_string_buffer(size.value)
    _ask(program, _BINARIES, 8, c.byref(c.c_void_p(c.addressof(content))))
    return content.raw


def _names(program: c.c_void_p) -> str:
    room = c.c_size_t()
    get = _library().clGetProgramInfo
    get(program, c.c_uint(_KERNEL_NAMES), c.c_size_t(0), None, c.byref(room))
    answer = c.create_string_buffer(room.value + 1)
    _ask(program, _KERNEL_NAMES, room.value, answer)
    return answer.value.decode()


@functools.cache
def devices() -> tuple[Device, ...]:
    """Return the devices of all platforms. Raises `OpenCLError` where there is no OpenCL."""
    platforms, count = (c.c_void_p * 32)(), c.c_uint()
    code = _library().clGetPlatformIDs(c.c_uint(32), platforms, c.byref(count))
    if code not in (0, _PLATFORM_NOT_FOUND):
        raise OpenCLError(f"clGetPlatformIDs failed with {code}")
    found: list[Device] = []
    for platform in platforms[: count.value if code == 0 else 0]:
        handles, number = (c.c_void_p * 64)(), c.c_uint()
        if _library().clGetDeviceIDs(
            c.c_void_p(platform), c.c_uint64(_ALL), c.c_uint(64), handles, c.byref(number)
        ):
            continue
        found += [Device(handle) for handle in handles[: number.value] if handle]
    return tuple(found)
