"""Libraries that are built already: their symbols, other builds of one file, tvm-ffi's runtime."""

from __future__ import annotations

import ctypes
import difflib
import hashlib
import importlib.util
import os
import threading
from functools import cache
from pathlib import Path

from bringup.errors import CompileError
from bringup.jit.files.elf import Symbols, symbols_of
from bringup.jit.files.identity import file_digest
from bringup.jit.source.source import Source

_TVM_LIBRARY = "libtvm_ffi.so"
_loaded: dict[str, tuple[tuple[int, int], str, int]] = {}
_loading = threading.Lock()


def library_key(source: Source) -> str:
    """Return the digest of a library's content. Raises `FileNotFoundError` naming it."""
    return hashlib.sha256(f"library {source.digest()}".encode()).hexdigest()


def check_symbol(source: Source) -> None:
    """Raise `ValueError` for an entry that is not exported, `FileNotFoundError` without a file."""
    source.digest()
    symbols = symbols_of(str(source.path))
    if symbols is None:
        raise ValueError(f"{source} is no shared library (it is no ELF file)")
    if source.symbol in symbols.data:
        raise ValueError(f"{source} exports {source.symbol!r} as a variable, not as a function")
    if source.symbol in symbols.exported:
        return
    raise ValueError(f"{source} exports no function {source.symbol!r}{_hint(source, symbols)}")


def _hint(source: Source, symbols: Symbols) -> str:
    mangled = f"{len(source.entry)}{source.entry}"
    for name in sorted(symbols.exported):
        if name.startswith("_Z") and mangled in name:
            return (
                f', but C++\'s {name!r}: declare the function extern "C" where the library is '
                "built, or pass the mangled name as entry="
            )
    functions = sorted(symbols.exported - symbols.data)
    exported = [name for name in functions if not name.startswith("_Z")]
    prefix = "__tvm_ffi_" if source.abi == "tvm_ffi" else ""
    near = difflib.get_close_matches(source.symbol, exported, 3, 0.5)
    near += [name for name in exported if source.entry.lower() in name.lower()]
    near += [name for name in exported if prefix and name.startswith(prefix)][:5]
    if not near:
        return f"; it exports {', '.join(exported[:8]) or 'no functions'}"
    return f"; did you mean {' or '.join(dict.fromkeys(map(repr, near)))}?"


def path_to_load(library: Path) -> str:
    """Return a path to open a library by, a new spelling where another build of the file is loaded.
    Raises `CompileError` when the file was changed in place under a library that is loaded.
    """
    symbols = symbols_of(str(library))
    if symbols is not None and symbols.wants("TVMFFI", _TVM_LIBRARY):
        _load_tvm_runtime(library)
    status = os.stat(library)
    identity, digest = (status.st_dev, status.st_ino), file_digest(str(library))
    with _loading:
        known = _loaded.get(str(library))
        spelling = 0
        if known is not None:
            if known[0] == identity and known[1] != digest:
                raise CompileError(
                    f"{library} was written over while this process had it loaded, so its old "
                    "code is still in use; put a new build there by renaming it, and start anew"
                )
            spelling = known[2] + (known[1] != digest)
        _loaded[str(library)] = (identity, digest, spelling)
    return f"{library.parent}/{'./' * spelling}{library.name}"


@cache
def _load_tvm_runtime(library: Path) -> None:
    """Load the runtime that the library shall find, without importing the package's Python."""
    try:
        package = importlib.util.find_spec("tvm_ffi")
    except ValueError:
        package = None
    if package is None or package.origin is None:
        raise CompileError(
            f"{library} needs tvm-ffi's runtime, which is not installed: pip install apache-tvm-ffi"
        )
    path = Path(package.origin).parent / "lib" / _TVM_LIBRARY
    try:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise CompileError(f"{library} needs tvm-ffi's runtime, and {error}") from error
