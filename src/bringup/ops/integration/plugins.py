"""Loading operator plugins: from the operator path, from entry points and explicitly."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from bringup import plugins, settings
from bringup.ops.registration.definition_rollback import Undefinable, collecting
from bringup.plugins import PluginReport

ENTRY_POINT_GROUP = "bringup.ops"

_from_plugins: dict[str, Undefinable] = {}


@contextmanager
def _whole_or_nothing() -> Iterator[list[str]]:
    names: list[str] = []
    with collecting() as operators:
        yield names
    for operator in operators:
        _from_plugins[operator.qualified_name] = operator
    names.extend(dict.fromkeys(operator.qualified_name for operator in operators))


def _forget(name: str) -> None:
    operator = _from_plugins.pop(name, None)
    if operator is not None:
        operator.undefine()


_loader = plugins.PluginLoader(
    ENTRY_POINT_GROUP, settings.ops_path, transaction=_whole_or_nothing, forget=_forget
)


def load_op_plugins(*places: str | os.PathLike[str]) -> PluginReport:
    """Define the operators of all plugins: those of `places`, of `BRINGUP_OPS_PATH`, and of the
    installed packages with an entry point in the group `bringup.ops`.

    The path is read again at every call: a file whose content is unchanged stays as it is, a
    changed one is loaded anew, the operators of one that is gone are undefined. A plugin that
    raises defines nothing and becomes an error in the report; the others load.

    Args:
        places: files, folders and packages to load besides; they stay until `unload_op_plugins`.

    Returns:
        For each plugin the names of the operators that it defined with `kernel_op`, `custom_op` or
        what builds on them, and an error with its traceback for each that is broken.
    """
    return _loader.load(places)


def unload_op_plugins() -> None:
    """Undefine all operators that came from plugins, and forget the modules of plugin files."""
    _loader.unload()
