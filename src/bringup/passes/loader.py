"""Loading pass plugins from the pass path and from entry points, each whole or not at all."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint

from bringup import plugins, settings
from bringup.errors import PluginError
from bringup.passes import registry

__all__ = ["ENTRY_POINT_GROUP", "PluginReport", "load_pass_plugins", "unload_pass_plugins"]

ENTRY_POINT_GROUP = "bringup.passes"


@dataclass
class PluginReport:
    """What is loaded now, and what could not be.

    Attributes:
        loaded: file or entry point -> the names of the passes it registered.
        errors: one `PluginError` per broken plugin; its text ends with the traceback.
    """

    loaded: dict[str, tuple[str, ...]] = field(default_factory=dict)
    errors: list[PluginError] = field(default_factory=list)


@dataclass
class _Loaded:
    names: tuple[str, ...]
    file: plugins.PluginFile | None = None


_STATE: dict[str, _Loaded] = {}


def load_pass_plugins() -> PluginReport:
    """Bring the registry in line with the pass path and the installed entry points.

    The path (`BRINGUP_PASS_PATH`, then `ASCEND_GE_PY_PASS_PATH`) is read again at every call: a
    file whose content is unchanged stays as it is, a changed one is loaded anew, one that is gone
    is unloaded. A plugin that raises registers nothing and becomes an error in the report; the
    others load.
    """
    report = PluginReport()
    with registry.locked():
        files, report.errors = plugins.plugin_files(settings.pass_path())
        _drop_stale(files)
        for file in files:
            _load(str(file.path), file, report)
        for entry in plugins.entry_points(ENTRY_POINT_GROUP):
            _load(f"{entry.name} = {entry.value}", entry, report)
    return report


def unload_pass_plugins() -> None:
    """Forget all passes that came from plugins, and the modules of plugin files."""
    with registry.locked():
        for key in list(_STATE):
            _unload(key)


def _drop_stale(files: list[plugins.PluginFile]) -> None:
    current = {str(file.path): file for file in files}
    for key, loaded in list(_STATE.items()):
        if loaded.file is not None and current.get(key) != loaded.file:
            _unload(key)


def _load(key: str, source: plugins.PluginFile | EntryPoint, report: PluginReport) -> None:
    if key not in _STATE:
        try:
            with registry.whole_or_nothing() as names:
                if isinstance(source, plugins.PluginFile):
                    plugins.load_file(source)
                else:
                    plugins.load_entry_point(source)
        except PluginError as error:
            trace = "".join(traceback.format_exception(error.__cause__ or error)).rstrip()
            report.errors.append(PluginError(f"{error}\n{trace}"))
            return
        file = source if isinstance(source, plugins.PluginFile) else None
        _STATE[key] = _Loaded(tuple(names), file)
    report.loaded[key] = _STATE[key].names


def _unload(key: str) -> None:
    loaded = _STATE.pop(key)
    for name in loaded.names:
        registry.forget(name)
    if loaded.file is not None:
        plugins.unload_file(loaded.file)
