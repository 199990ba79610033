"""Plugins: the one discovery for drivers, operators and passes.

Owns finding and isolating plugins: a broken one is reported, the others load. Does not know what a
driver, an operator or a pass is.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from bringup.errors import PluginError

__all__ = [
    "PluginFile",
    "entry_points",
    "load_entry_point",
    "load_file",
    "plugin_files",
    "unload_file",
]

_PREFIX = "bringup_plugin_"


@dataclass(frozen=True)
class PluginFile:
    """A plugin on disk: a Python file, or a package folder.

    Attributes:
        path: the file, or the package's `__init__.py`.
        digest: of its content (of all Python files of a package): its identity.
    """

    path: Path
    digest: str

    @property
    def module_name(self) -> str:
        """The private name under which it is imported: never in anyone's way."""
        stem = self.path.parent.name if self.path.name == "__init__.py" else self.path.stem
        place = hashlib.sha256(str(self.path).encode()).hexdigest()[:8]
        return f"{_PREFIX}{stem}_{place}"


def plugin_files(places: Sequence[Path]) -> tuple[list[PluginFile], list[PluginError]]:
    """The plugins in folders, packages and files, each once, in the order of `places`, then by
    name.

    A folder gives its `.py` files and packages whose names do not begin with `_`; a folder with an
    `__init__.py` is one package. What cannot be read is an error in the second list.
    """
    found: dict[Path, PluginFile] = {}
    errors: list[PluginError] = []
    for place in places:
        try:
            for path in _paths_in(place):
                resolved = path.resolve()
                found.setdefault(resolved, PluginFile(resolved, _digest(resolved)))
        except (OSError, ValueError) as error:
            errors.append(PluginError(f"plugin path {place}: {error}"))
    return list(found.values()), errors


def load_file(plugin: PluginFile) -> ModuleType:
    """Import a plugin file under its private name. `sys.path` is left as found.

    Raises `PluginError`, with the original exception as its cause, when importing it fails; then
    nothing of it stays in `sys.modules`.
    """
    unload_file(plugin)
    package = [str(plugin.path.parent)] if plugin.path.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(
        plugin.module_name, plugin.path, submodule_search_locations=package
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[plugin.module_name] = module
    try:
        with _import_state_kept():
            # compiled here and now: a cached .pyc is trusted by time and size, a plugin by its
            # content
            _execute(plugin, module)
    except Exception as error:
        unload_file(plugin)
        raise PluginError(f"plugin {plugin.path} raised {type(error).__name__}: {error}") from error
    return module


def unload_file(plugin: PluginFile) -> None:
    """Forget the modules of a plugin file."""
    for name in [*sys.modules]:
        if name == plugin.module_name or name.startswith(plugin.module_name + "."):
            del sys.modules[name]


def entry_points(group: str) -> list[importlib.metadata.EntryPoint]:
    """The installed entry points of a group, by name."""
    return sorted(importlib.metadata.entry_points(group=group), key=lambda item: item.name)


def load_entry_point(entry: importlib.metadata.EntryPoint) -> None:
    """Import an entry point (a module, or a callable, which is then called).

    Raises `PluginError`, with the original exception as its cause, when that fails.
    """
    try:
        loaded: ModuleType | Callable[[], object] = entry.load()
        if not isinstance(loaded, ModuleType):
            loaded()
    except Exception as error:
        raise PluginError(
            f"entry point {entry.name!r} = {entry.value} of group {entry.group!r} raised "
            f"{type(error).__name__}: {error}"
        ) from error


def _execute(plugin: PluginFile, module: ModuleType) -> None:
    code = compile(plugin.path.read_bytes(), str(plugin.path), "exec", dont_inherit=True)
    exec(code, vars(module))


def _paths_in(place: Path) -> Iterator[Path]:
    if place.is_file():
        if place.suffix != ".py":
            raise ValueError("expected a .py file, a folder or a package")
        yield place
    elif not place.is_dir():
        raise FileNotFoundError("no such file or folder")
    elif (place / "__init__.py").is_file():
        yield place / "__init__.py"
    else:
        for item in sorted(place.iterdir()):
            if item.name.startswith(("_", ".")):
                continue
            if item.suffix == ".py" and item.is_file():
                yield item
            elif (item / "__init__.py").is_file():
                yield item / "__init__.py"


def _digest(path: Path) -> str:
    files = sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]
    digest = hashlib.sha256()
    for file in files:
        digest.update(str(file.relative_to(path.parent)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


@contextmanager
def _import_state_kept() -> Iterator[None]:
    path, no_bytecode = list(sys.path), sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.path[:] = path
        sys.dont_write_bytecode = no_bytecode
