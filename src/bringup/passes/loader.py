"""Loading pass plugins from the pass path, from entry points and explicitly."""

from __future__ import annotations

import os

from bringup import plugins, settings
from bringup.passes import registry
from bringup.plugins import PluginReport

__all__ = ["ENTRY_POINT_GROUP", "PluginReport", "load_pass_plugins", "unload_pass_plugins"]

ENTRY_POINT_GROUP = "bringup.passes"

_loader = plugins.PluginLoader(
    ENTRY_POINT_GROUP,
    settings.pass_path,
    transaction=registry.whole_or_nothing,
    forget=registry.forget,
    locked=registry.locked,
)


def load_pass_plugins(*places: str | os.PathLike[str]) -> PluginReport:
    """Bring the registry in line with the pass path and the installed entry points.

    The path (`BRINGUP_PASS_PATH`, then `ASCEND_GE_PY_PASS_PATH`) is read again at every call: a
    file whose content is unchanged stays as it is, a changed one is loaded anew, one that is gone
    is unloaded. `places` are more files, folders and packages; they come first and stay until
    `unload_pass_plugins`. A plugin that raises registers nothing and becomes an error in the
    report; the others load.
    """
    return _loader.load(places)


def unload_pass_plugins() -> None:
    """Forget all passes that came from plugins, and the modules of plugin files."""
    _loader.unload()
