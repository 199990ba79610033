"""Bundles that packages bring along: taken where they fit, left alone where they do not."""

from __future__ import annotations

import os
from pathlib import Path

from bringup import settings
from bringup.errors import BundleError
from bringup.jit.store.active_cache import cache

_log = settings.logger("jit")


def use_bundle(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Take the kernels of a bundle that a package brings along into the cache.

    Meant for a package's import: a bundle for other machines, a damaged or a missing one is a
    warning, not an error, because the kernels' sources may still be compiled.

    Returns:
        The keys of the kernels that this machine can use.

    Args:
        path: the bundle, as `Cache.export_bundle` and `bringup prebuild` write it.

    Examples:
        >>> import tempfile
        >>> from bringup import jit
        >>> text = "int one(void) { return 1; }"
        >>> source = jit.Source(name="one.c", text=text, entry="one", abi="function")
        >>> binary = jit.compile(source)
        >>> path = tempfile.mkdtemp() + "/kernels.bundle"
        >>> _ = jit.cache().export_bundle(path, [binary.key])
        >>> jit.use_bundle(path) == (binary.key,)
        True
    """
    try:
        return tuple(entry.key for entry in cache().import_bundle(Path(path)))
    except (BundleError, OSError) as error:
        _log.warning("the kernels of %s are not used, and compiled when needed: %s", path, error)
        return ()
