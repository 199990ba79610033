"""What is compiled: a kernel source with its entry point, not how it is built."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal, get_args

from bringup.jit.files.identity import bytes_digest, file_digest, read_bytes
from bringup.jit.source.languages import broken_packages, language_of, suffixes

Abi = Literal["args", "params", "ascendc", "function", "tvm_ffi", "values"]
Kind = Literal["host", "device"]

_PREFIXES: Mapping[Abi, str] = {"ascendc": "aclrtlaunch_", "tvm_ffi": "__tvm_ffi_"}

_ABIS = get_args(Abi)
_KINDS = get_args(Kind)


@dataclass(frozen=True)
class Source:
    """A kernel source: a file, or a text with a name.

    Args:
        path: the source file; its suffix says the language (`.c`, `.cc`, `.cpp`, `.cxx`, `.cu`,
            and those of registered targets). Or a library that is built already (`.so`), which is
            taken as it is.
        text: the source itself, instead of a file.
        name: what to call it in messages; for a text its suffix says the language. Defaults to the
            file's name, or `kernel.cpp`.
        entry: the C function to start (`extern "C"` in C++).
        abi: the form of the entry: `"args"` is kernel.h's `run(args, n, ctx)`, `"params"` is
            `run(block_num, stream, params)`, `"ascendc"` is `aclrtlaunch_<entry>(block_dim, stream,
            ...)`, `"function"` any C function, `"tvm_ffi"` what tvm-ffi exports as
            `__tvm_ffi_<entry>`, `"values"` device code with plain arguments (bringup/device.h).
        kind: `"host"` runs on the host and launches for itself, `"device"` is started by the driver
            over a grid.

    Raises:
        TypeError: neither or both of `path` and `text` are given.
        ValueError: an argument cannot be what it says.
    """

    path: Path | str | None = None
    _: KW_ONLY
    text: str | None = None
    name: str = ""
    entry: str = "run"
    abi: Abi = "args"
    kind: Kind = "host"

    def __post_init__(self) -> None:
        if (self.path is None) == (self.text is None):
            given = "neither" if self.path is None else "both"
            raise TypeError(f"jit.Source needs a path or text=, got {given}")
        name = "kernel.cpp"
        if self.path is not None:
            full = os.path.abspath(self.path)
            object.__setattr__(self, "path", Path(full))
            name = os.path.basename(full)
        if not self.name:
            object.__setattr__(self, "name", name)
        self._check()

    def _check(self) -> None:
        if self.text is not None and (
            os.path.basename(self.name) != self.name or '"' in self.name or len(self.name) > 200
        ):
            raise ValueError(
                f"jit.Source(name={self.name!r}): expected a plain file name, of at most 200 "
                "characters"
            )
        if self.is_library:
            self._check_library()
        elif not language_of(self._suffix):
            raise ValueError(
                f"jit.Source {self.name!r}: expected a file ending in one of "
                f"{', '.join(suffixes())}, got {self._suffix or 'no suffix'!r}{broken_packages()}"
            )
        if not (self.entry.isidentifier() and self.entry.isascii()):
            raise ValueError(
                f"jit.Source(entry={self.entry!r}) of {self.name!r}: expected the name of a "
                "C function"
            )
        if self.abi not in _ABIS:
            raise ValueError(
                f"jit.Source(abi={self.abi!r}) of {self.name!r}: expected one of {_ABIS}"
            )
        if self.kind not in _KINDS:
            raise ValueError(
                f"jit.Source(kind={self.kind!r}) of {self.name!r}: expected one of {_KINDS}"
            )

        if self.abi == "tvm_ffi" and self.kind == "device":
            raise ValueError(
                f"jit.Source {self.name!r}: tvm-ffi exports host entries, not device code"
            )

        if self.abi == "values" and self.kind != "device":
            raise ValueError(
                f"jit.Source(abi='values') of {self.name!r}: is device code, started over blocks "
                "of threads: kind='device'"
            )

    def _check_library(self) -> None:
        if self.path is None:
            raise ValueError(f"jit.Source(name={self.name!r}): a library is a file, not a text")
        if self.kind == "device":
            raise ValueError(
                f"jit.Source {self.name!r}: a library is a host entry; device code is built by jit"
            )
        if self.abi in {"params", "ascendc"}:
            raise ValueError(
                f"jit.Source(abi={self.abi!r}) of {self.name!r}: a library is called by 'args', "
                "'function' or 'tvm_ffi'; the other forms are generated around a source"
            )

    @property
    def is_library(self) -> bool:
        """Return whether it is a shared library, which is not compiled."""
        _, suffix, version = self.file_name.rpartition(".so")
        before, *numbers = version.split(".")
        return bool(suffix) and not before and all(map(str.isdecimal, numbers))

    @property
    def _suffix(self) -> str:
        return os.path.splitext(self.file_name)[1]

    @property
    def language(self) -> str:
        """`"c"`, `"c++"`, `"cuda"`, or what a registered target calls its own."""
        return "library" if self.is_library else language_of(self._suffix)

    @property
    def symbol(self) -> str:
        """Return the symbol that the binary exports for the entry."""
        return _PREFIXES.get(self.abi, "") + self.entry

    @property
    def directory(self) -> str:
        """Return where `#include "..."` looks first; empty for a text."""
        return "" if self.path is None else os.path.dirname(self.path)

    @property
    def file_name(self) -> str:
        """Return the name of the file that holds the source."""
        return self.name if self.path is None else os.path.basename(self.path)

    def content(self) -> bytes:
        """Return the source itself, now. Raises `FileNotFoundError` naming it."""
        if self.text is not None:
            return self.text.encode()
        with self._translate_missing_file():
            return read_bytes(str(self.path))

    def digest(self) -> str:
        """Return SHA-256 of the content, in hex. Raises `FileNotFoundError` naming it."""
        if self.text is not None:
            return bytes_digest(self.text.encode())
        with self._translate_missing_file():
            return file_digest(str(self.path))

    @contextlib.contextmanager
    def _translate_missing_file(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            what = "no such kernel source; jit.Source needs a file that exists when it is compiled"
            raise FileNotFoundError(error.errno, what, str(self.path)) from None

    def __str__(self) -> str:
        return self.name if self.path is None else str(self.path)
