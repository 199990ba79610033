"""Which cache is in use: the user's, or one for this process alone where that cannot be."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterable
from functools import cache as memoised
from pathlib import Path

from bringup import settings
from bringup.errors import BundleError
from bringup.jit.files.layout import translate_write_errors
from bringup.jit.store.cache import Cache

_log = settings.logger("jit")


@memoised
def private_cache() -> Cache:
    """Return a cache for this process alone, gone when it ends. Raises `StoreUnwritableError`."""
    owner = os.getpid()
    with translate_write_errors():
        root = Path(tempfile.mkdtemp(prefix="bringup-"))

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(root, ignore_errors=True)

    atexit.register(remove)
    return Cache(root)


os.register_at_fork(after_in_child=private_cache.cache_clear)


def made_private_cache() -> Cache | None:
    """Return the private cache, if there was a reason to make one."""
    return private_cache() if private_cache.cache_info().currsize else None


@memoised
def warn_private(reason: str) -> None:
    """Say once why kernels are kept elsewhere."""
    _log.warning(
        "the kernel cache cannot be used: %s. Kernels built now are kept in a private temporary "
        "folder until this process ends; set BRINGUP_CACHE_DIR to a folder of your own",
        reason,
    )


_cache_at = memoised(Cache)


def cache() -> Cache:
    """Return the cache of `BRINGUP_CACHE_DIR`, or a private one when others may write it."""
    found = _cache_at(settings.cache_dir())
    if reason := found.distrust():
        warn_private(reason)
        return private_cache()
    return found


def use_bundle(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Take the kernels of a bundle that a package brings along into the cache. Returns the keys of
    the kernels that this machine can use.

    Meant for a package's import: a bundle for other machines, a damaged or a missing one is a
    warning, not an error, because the kernels' sources may still be compiled.

    Args:
        path: the bundle, as `Cache.export_bundle` and `bringup prebuild` write it.
    """
    try:
        return tuple(entry.key for entry in cache().import_bundle(Path(path)))
    except (BundleError, OSError) as error:
        _log.warning("the kernels of %s are not used, and compiled when needed: %s", path, error)
        return ()


def packed_bundle(keys: Iterable[str]) -> bytes:
    """Return the bundle of these entries of the cache. Raises `LookupError`, `BundleError`."""
    from bringup.jit.store import bundle

    return bundle.write_bundle(bundle.pack_entry(cache().find(key).path) for key in keys)


def take_bundle(content: bytes, what: str) -> None:
    """Take the kernels of a bundle that another file holds. Raises as `Cache.import_bundle`."""
    from bringup.jit.store import bundle

    cache().take_all(bundle.read_bundle(content, what), what)
