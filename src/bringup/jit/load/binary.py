"""What a compile returns: a file that is loaded into the native kernel table, and unloaded.

An entry of a store is marked as in use while it is loaded; one on a file system that nothing may be
executed from is loaded through memory.
"""

from __future__ import annotations

import itertools
import os
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bringup import _native, settings
from bringup.errors import BringupError, CompileError
from bringup.jit.files.entry_usage import mark_in_use, release_marks
from bringup.jit.files.layout import StoreLayout
from bringup.jit.load.prebuilt import path_to_load
from bringup.jit.source.source import Abi, Kind
from bringup.jit.target.debug import NO_DEBUG, Debug
from bringup.jit.target.target import find_target

if TYPE_CHECKING:
    from bringup._language.c_call import Binding


_log = settings.logger("jit")
_serial = itertools.count()


class RemovedError(CompileError):
    """Internal: a binary went between compile and load, as by a clear of the cache."""


class _Loaded(NamedTuple):
    kernel_id: int
    binary: Binary


_loaded: dict[tuple[str, str, Binding | None], _Loaded] = {}
_loading = threading.Lock()


def _reset_lock() -> None:
    """Renew the lock in a forked child, whose parent's threads it lacks."""
    global _loading
    _loading = threading.Lock()


os.register_at_fork(after_in_child=_reset_lock)


class Unloaded(NamedTuple):
    """What `unload` did.

    Attributes:
        closed: the build keys whose libraries were closed.
        held: those that stay loaded, because an operator, a graph or a running launch holds them.
    """

    closed: tuple[str, ...]
    held: tuple[str, ...]


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
        binding: how the entry is called, where it has a form of its own.
        prebuilt: whether it is a library built elsewhere, and no entry of a cache.
    """

    path: Path
    key: str
    entry: str
    abi: Abi
    kind: Kind
    target: str = "cpu"
    debug: Debug = NO_DEBUG
    binding: Binding | None = None
    prebuilt: bool = False

    @property
    def folder(self) -> Path:
        """Return the entry in the cache: the source as it was compiled, `build.log`, `meta.json`
        with the key's record, and what a debug build leaves (`kernel.s`, `kernel.ii`,
        `kernel.ptx`).
        """
        return self.path.parent

    @property
    def kernel_id(self) -> int:
        """Return the kernel's number in the native kernel table; loaded once in a process, and
        again after `unload` has closed it.

        Raises:
            CompileError: the library cannot be loaded, with the loader's reason.
            TargetError: it is for another machine, or this process lacks what it needs.
        """
        identity = (self.key, self.entry, self.binding)
        known = _loaded.get(identity)
        if known is not None:
            return known.kernel_id
        with _loading:
            if identity not in _loaded:
                _loaded[identity] = _Loaded(self._load(), self)
            return _loaded[identity].kernel_id

    def _load(self) -> int:
        if layout := _layout_of(self):
            mark_in_use(layout, self.key)  # first: nothing prunes it from here on
        try:
            find_target(self.target).check_loadable(self.path, self.debug)
            return self._load_from(str(self.path))
        except (FileNotFoundError, RuntimeError) as error:
            if isinstance(error, BringupError):
                raise
            if self.prebuilt:
                raise CompileError(f"the library {self.path} cannot be loaded: {error}") from error
            # Another process may have built it again since the loader missed it.
            missed = f"{self.path}: cannot open shared object file: No such file" in str(error)
            if missed or isinstance(error, FileNotFoundError):
                raise RemovedError(
                    f"the kernel {self.entry!r} was built, and removed from the cache before it "
                    f"was loaded ({self.path}): compile it again"
                ) from error
            if os.statvfs(self.path).f_flag & os.ST_NOEXEC:
                return self._load_through_memory()
            raise CompileError(
                f"the kernel {self.entry!r} was built but cannot be loaded: {error}"
            ) from error

    def _load_from(self, path: str) -> int:
        core = _native.core()
        kernel_id: int
        opens = find_target(self.target).host_library
        if self.prebuilt or self.binding is not None:
            path = path_to_load(self.path) if path == str(self.path) else path
        if self.binding is not None:
            kernel_id = core.bind_c_function(path, self.entry, *self.binding.native(), opens=opens)
        else:
            kernel_id = core.load_kernel(path, self.entry, self.kind == "device", opens)
        return kernel_id

    def _load_through_memory(self) -> int:
        _warn_noexec(self.path.parents[2] if _layout_of(self) else self.path.parent)
        descriptor = os.memfd_create(f"bringup-{self.key[:12]}", os.MFD_CLOEXEC)
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(self.path.read_bytes())
            return self._load_from(_unique_path(descriptor))
        except (OSError, RuntimeError) as error:
            raise CompileError(
                f"the kernel {self.entry!r} was built, but {self.path} is on a file system that "
                f"nothing may be executed from, and it cannot be loaded through memory: {error}. "
                "Set BRINGUP_CACHE_DIR to a folder on another one"
            ) from error
        finally:
            os.close(descriptor)


def loaded_binaries() -> dict[int, Binary]:
    return {loaded.kernel_id: loaded.binary for loaded in list(_loaded.values())}


def _layout_of(binary: Binary) -> StoreLayout | None:
    return None if binary.prebuilt else StoreLayout.of_binary(binary.path, binary.key)


@cache
def _warn_noexec(store: Path) -> None:
    _log.warning(
        "nothing may be executed from the file system of %s (noexec): kernels are loaded through "
        "memory. Set BRINGUP_CACHE_DIR to a folder on another one",
        store,
    )


def _unique_path(descriptor: int) -> str:
    """Return an unused path to the descriptor: libraries go by name, and numbers recur."""
    # Neither step changes where a path leads.
    steps = ("./" if digit == "1" else "/" for digit in f"{next(_serial):b}")
    return f"/proc/self/fd/{''.join(steps)}{descriptor}"


def unload() -> Unloaded:
    """Close the libraries of this process's kernels that nothing holds; see `Cache.unload`."""
    closed: dict[str, Binary] = {}
    held: set[str] = set()
    with _loading:
        for identity, loaded in list(_loaded.items()):
            if _native.core().release_unused_kernel(loaded.kernel_id):
                closed[loaded.binary.key] = loaded.binary
                del _loaded[identity]
            else:
                held.add(loaded.binary.key)
        gone = [binary for key, binary in sorted(closed.items()) if key not in held]
        for binary in gone:
            if layout := _layout_of(binary):
                release_marks(layout, {binary.key})
    return Unloaded(tuple(binary.key for binary in gone), tuple(sorted(held)))
