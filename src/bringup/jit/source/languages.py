"""What file suffixes mean. Targets bring their languages, and packages bring targets.

An entry point of `bringup.targets` names a module or function that registers its targets. It is
imported when a suffix or target is asked for that is not known yet.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from bringup import plugins
from bringup.errors import PluginError

ENTRY_POINT_GROUP = "bringup.targets"

_languages: dict[str, str] = {}  # by suffix
_imported: dict[tuple[str, str], PluginError | None] = {}  # entry points, and what is wrong
_importing = threading.RLock()


def add_languages(languages: Mapping[str, str]) -> None:
    """Make file suffixes known. Raises `ValueError` when one means another language already."""
    for suffix, language in languages.items():
        if not suffix.startswith(".") or _languages.get(suffix, language) != language:
            raise ValueError(
                f"suffix {suffix!r} cannot mean {language}: "
                + (f"it means {_languages[suffix]}" if suffix in _languages else "it has no dot")
            )
    _languages.update(languages)


def language_of(suffix: str) -> str:
    if suffix and suffix not in _languages:
        import_packages()
    return _languages.get(suffix, "")


def suffixes() -> list[str]:
    return list(_languages)


def import_packages() -> None:
    """Import what packages say registers targets, each once in a process."""
    for entry in plugins.entry_points(ENTRY_POINT_GROUP):
        with _importing:
            if (entry.name, entry.value) in _imported:
                continue
            _imported[entry.name, entry.value] = None
            try:
                plugins.load_entry_point(entry)
            except PluginError as error:
                _imported[entry.name, entry.value] = error


def broken_packages() -> str:
    """Return what is wrong with packages that bring targets, to end a message with, or ""."""
    broken = [error for error in _imported.values() if error is not None]
    return "".join(f"; {plugins.with_traceback(error)}" for error in broken)
