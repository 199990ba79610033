"""What a compile returns: a file on disk that can be loaded into the native kernel table."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from bringup import _native
from bringup.errors import CompileError
from bringup.jit._debug import NO_DEBUG, Debug
from bringup.jit._source import Abi, Kind
from bringup.jit._target import find_target

__all__ = ["Binary"]

_loaded: dict[tuple[str, str], int] = {}
_loading = threading.Lock()


def _reset_lock() -> None:
    """A forked child must not wait for a thread that only its parent has."""
    global _loading
    _loading = threading.Lock()


os.register_at_fork(after_in_child=_reset_lock)


@dataclass(frozen=True)
class Binary:
    """A compiled kernel.

    Attributes:
        path: the shared library.
        key: the build key: the same key means the same content.
        entry: the symbol to start.
        abi: the form of the entry.
        kind: host entry or device code.
        target: what it was built for.
        debug: what was added for debugging.
    """

    path: Path
    key: str
    entry: str
    abi: Abi
    kind: Kind
    target: str = "cpu"
    debug: Debug = NO_DEBUG

    @property
    def folder(self) -> Path:
        """The entry in the cache: the source as it was compiled, `build.log`, `meta.json` with the
        key's record, and what a debug build leaves (`kernel.s`, `kernel.ii`, `kernel.ptx`).
        """
        return self.path.parent

    @property
    def kernel_id(self) -> int:
        """The kernel's number in the native kernel table; loaded once in a process.

        Raises:
            CompileError: the library cannot be loaded, with the loader's reason.
            TargetError: it is for another machine, or this process lacks what it needs.
        """
        identity = (self.key, self.entry)
        known = _loaded.get(identity)
        if known is not None:
            return known
        with _loading:
            if identity not in _loaded:
                _loaded[identity] = self._load()
            return _loaded[identity]

    def _load(self) -> int:
        find_target(self.target).check_loadable(self.path, self.debug)
        try:
            kernel_id: int = _native.core().load_kernel(
                str(self.path), self.entry, self.kind == "device"
            )
        except RuntimeError as error:
            raise CompileError(
                f"the kernel {self.entry!r} was built but cannot be loaded: {error}"
            ) from error
        return kernel_id
