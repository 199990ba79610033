"""Loading pass plugins from the pass path, from entry points and explicitly."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bringup import plugins, settings
from bringup.errors import PluginError
from bringup.passes.engine import PassRegistration, native
from bringup.passes.registry import registry
from bringup.plugins import PluginReport as PluginReport

ENTRY_POINT_GROUP = "bringup.passes"
GE_ENTRY_POINT_GROUP = "ge.passes.plugins"

_registered: dict[str, PassRegistration] = {}


@contextmanager
def _whole_or_nothing() -> Iterator[list[str]]:
    labels: list[str] = []
    with registry.collecting() as registrations:
        yield labels
    for registration in registrations:
        _registered[registration.label] = registration
        labels.append(registration.label)


def import_pass_module(name: str) -> None:
    """Import a module that registers passes. Raises `PluginError` with its name when it fails."""
    try:
        importlib.import_module(name)
    except Exception as error:
        raise PluginError(
            f"the module {name!r} with passes cannot be imported: {type(error).__name__}: {error}"
        ) from error


def _forget(label: str) -> None:
    registration = _registered.pop(label, None)
    if registration is not None:
        native.forget_passes([registration])


def _open_library(path: Path) -> Callable[[], None]:
    """Load a library's passes, all or none, unless it is unchanged. Raises `PluginError`."""
    try:
        registry.note(native.load_pass_library(str(path)))
    except (RuntimeError, ValueError, KeyError) as error:
        raise PluginError(f"library {path}: {error}") from error
    return lambda: _close_library(path)


def _close_library(path: Path) -> None:
    native.unload_pass_library(str(path))


def _library() -> dict[str, str]:
    """Return the shipped passes, which rewrite torch's graphs; `kernels`, above, gives them."""
    if not settings.pass_library() or not _torch_is_installed():
        return {}
    return {"library": "bringup.kernels.patterns:register_patterns"}


@functools.cache
def _torch_is_installed() -> bool:
    return "torch" in sys.modules or importlib.util.find_spec("torch") is not None


# The loader's own lock is not the registry's: who registers passes never waits for a plugin.
_loader = plugins.PluginLoader(
    (ENTRY_POINT_GROUP, GE_ENTRY_POINT_GROUP),
    settings.pass_path,
    transaction=_whole_or_nothing,
    forget=_forget,
    open_library=_open_library,
    built_in=_library,
)


def load_pass_plugins(*places: str | os.PathLike[str], library: bool = True) -> PluginReport:
    r"""Bring the registry in line with the shipped library, the pass path and the entry points;
    return what became of each plugin.

    The shipped library (`bringup.kernels.patterns`) comes first, unless `BRINGUP_PASS_LIBRARY` is 0
    or torch is missing; its passes run after those of priority 0, so that yours see the graph
    first. Without `library` it is not loaded now, which would import torch.

    Entry points are those of the groups `bringup.passes` and `ge.passes.plugins`. The path
    (`BRINGUP_PASS_PATH`, then `ASCEND_GE_PY_PASS_PATH`) is read again at every call: an unchanged
    file stays, a changed one is loaded anew, one that is gone is unloaded; after
    `clear_registered_passes` all are loaded anew. `places` are more files, folders and packages;
    they come first and stay until `unload_pass_plugins`. A plugin that raises registers nothing and
    becomes an error in the report. Shared libraries (`.so`) with passes in C or C++ are plugins
    too.
    """
    if registry.take_cleared():
        _loader.load_again()
    return _loader.load(places, built_in=library)


def unload_pass_plugins(*, keep_libraries: bool = False) -> None:
    """Forget plugins' passes and modules; `keep_libraries` keeps those in C and C++."""
    _loader.unload(keep_libraries=keep_libraries)


def shutdown() -> None:
    """Forget all passes, those of plugins with their modules. Harmless when called again."""
    unload_pass_plugins()
    registry.clear_registered_passes()
