"""Plugins: the one discovery for drivers, operators and passes.

Owns finding plugins (environment path, entry points, an explicit call) and isolating them: a broken
one is reported, the others load. Does not know what a driver, an operator or a pass is: each
package gives a `PluginLoader` what its plugins register.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

from bringup.errors import PluginError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "PluginFile", "PluginLoader", "PluginReport", "entry_object", "entry_points",
    "load_entry_point", "load_file", "plugin_files", "unload_file", "with_traceback",
]  # fmt: skip

_PACKAGE = __name__.partition(".")[0]
_PREFIX = f"{_PACKAGE}_plugin_"
LIBRARY_SUFFIX = ".so"


@dataclass(frozen=True)
class PluginFile:
    """A plugin on disk: a Python file, a package folder, or a shared library.

    Attributes:
        path: the file, or the package's `__init__.py`.
        digest: of its content (of all Python files of a package): its identity.
    """

    path: Path
    digest: str

    @property
    def is_library(self) -> bool:
        """Return whether it is a shared library, which its package loads."""
        return self.path.suffix == LIBRARY_SUFFIX

    @property
    def folder(self) -> Path:
        """Return where what it imports by name may lie: the folder of the file or the package."""
        is_package = self.path.name == "__init__.py"
        return self.path.parent.parent if is_package else self.path.parent

    @property
    def module_name(self) -> str:
        """Return the private name under which it is imported: never in anyone's way."""
        stem = self.path.parent.name if self.path.name == "__init__.py" else self.path.stem
        place = hashlib.sha256(str(self.path).encode()).hexdigest()[:8]
        return f"{_PREFIX}{stem}_{place}"


def plugin_files(
    places: Mapping[Path, str], *, libraries: bool = False
) -> tuple[list[PluginFile], list[PluginError]]:
    """Return the plugins in folders, packages and files, each once, in the order of `places`, then
    by name. `places` says of each who names it, which errors repeat: a variable, a call.

    A folder gives its `.py` files and packages whose names do not begin with `_`, and its shared
    libraries (`.so`) where `libraries` are plugins too; a folder with an `__init__.py` is one
    package. What cannot be read is an error in the second list.

    Args:
        places: by path, who names it.
        libraries: whether shared libraries are plugins too.
    """
    suffixes = (".py", LIBRARY_SUFFIX) if libraries else (".py",)
    found: dict[Path, PluginFile] = {}
    errors: list[PluginError] = []
    for place, origin in places.items():
        try:
            paths = [path.resolve() for path in _paths_in(place, suffixes)]
        except (OSError, ValueError) as error:
            errors.append(PluginError(f"plugin path {place} (from {origin}): {error}"))
            continue
        for path in paths:
            try:
                found.setdefault(path, PluginFile(path, _digest(path)))
            except (OSError, ValueError) as error:
                errors.append(PluginError(f"plugin {str(path)!r}: {error}"))
    return list(found.values()), errors


def load_file(plugin: PluginFile) -> ModuleType:
    """Import a plugin file under its private name, and return the module.

    Its folder comes first on `sys.path`, so that it can import what lies beside it; then
    `sys.path` is left as found. Modules that it brought so are its own: another plugin's folder may
    have others of the same names, and they are forgotten with it.

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
        with _import_state_kept(), _helpers_kept(plugin):
            # compiled here and now: a cached .pyc is trusted by time and size, a plugin by its
            # content
            code = compile(plugin.path.read_bytes(), str(plugin.path), "exec", dont_inherit=True)
            exec(code, vars(module))
    except KeyboardInterrupt:
        unload_file(plugin)
        raise
    except BaseException as error:  # also what ends the program, as sys.exit()
        unload_file(plugin)
        raise PluginError(f"plugin {plugin.path} raised {_error_text(error)}") from error
    return module


def unload_file(plugin: PluginFile) -> None:
    """Forget the modules of a plugin file, and those beside it that it brought."""
    for name, helper in _HELPERS.pop(plugin.module_name, {}).items():
        if sys.modules.get(name) is helper:
            del sys.modules[name]
    for name in [*sys.modules]:
        if name == plugin.module_name or name.startswith(plugin.module_name + "."):
            del sys.modules[name]


_HELPERS: dict[str, dict[str, ModuleType]] = {}
"""By the module of a plugin file, what it imported from its folder."""


@contextmanager
def _helpers_kept(plugin: PluginFile) -> Iterator[None]:
    """Make modules beside a plugin file importable in this block, and no other folder's."""
    folder = plugin.folder
    foreign = {
        name: helper
        for brought in _HELPERS.values()
        for name, helper in brought.items()
        if sys.modules.get(name) is helper and not _lies_in(helper, folder)
    }
    for name in foreign:
        del sys.modules[name]
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    sys.path_importer_cache.pop(str(folder), None)
    try:
        yield
    finally:
        _HELPERS[plugin.module_name] = {
            name: module
            for name, module in [*sys.modules.items()]
            if name not in before
            and not name.startswith(plugin.module_name)
            and _lies_in(module, folder)
        }
        sys.modules.update(foreign)


def _lies_in(module: ModuleType, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve().is_relative_to(folder)


def entry_points(group: str) -> list[EntryPoint]:
    """Return the installed entry points of a group, by name.

    Reading those of every installed package takes milliseconds, so they are kept until a folder of
    `sys.path` changes, as it does when a package is installed or removed.
    """
    state = _installation()
    if state is None:
        return read_entry_points(group)
    known = _ENTRY_POINTS.get(group)
    if known is None or known[0] != state:
        known = _ENTRY_POINTS[group] = state, read_entry_points(group)
    return list(known[1])


_Installation: TypeAlias = tuple[tuple[str, int], ...]
_ENTRY_POINTS: dict[str, tuple[_Installation, list[EntryPoint]]] = {}
# What reads the folders of sys.path alone: Python's own, and the backport that takes its place.
_PATH_FINDERS = frozenset({importlib.machinery.PathFinder.__module__, "importlib_metadata"})


def read_entry_points(group: str) -> list[EntryPoint]:
    from importlib import metadata  # it loads the parser of mail headers

    return sorted(metadata.entry_points(group=group), key=lambda item: item.name)


def _installation() -> _Installation | None:
    """Return what changes when packages come or go, or None."""
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_distributions")]
    if any(finder.__module__ not in _PATH_FINDERS for finder in finders):
        return None
    return tuple([(place, _changed(place)) for place in sys.path])


def _changed(place: str) -> int:
    try:
        return os.stat(place or os.curdir).st_mtime_ns  # noqa: PTH116  a Path takes twice as long
    except OSError:
        return 0


def entry_object(entry: EntryPoint) -> object:
    """Return what an entry point names.

    Raises `PluginError`, with the original exception as its cause, when importing it fails; modules
    of its package that this import brought are then forgotten again.
    """
    before = set(sys.modules)
    try:
        return entry.load()
    except BaseException as error:
        _forget_modules(entry, before)
        raise _entry_error(entry, error) from error


def load_entry_point(entry: EntryPoint) -> None:
    """Import an entry point (a module, or a callable, which is then called).

    Raises `PluginError`, with the original exception as its cause, when that fails.
    """
    before = set(sys.modules)
    loaded = entry_object(entry)
    if isinstance(loaded, ModuleType):
        return
    try:
        loaded()  # type: ignore[operator]
    except BaseException as error:
        _forget_modules(entry, before)
        raise _entry_error(entry, error) from error


def with_traceback(error: PluginError) -> PluginError:
    """Return the same error, its text ending with the traceback of its cause."""
    trace = "".join(traceback.format_exception(error.__cause__ or error)).rstrip()
    return PluginError(f"{error}\n{trace}")


@dataclass
class PluginReport:
    """What is loaded now, and what could not be.

    Attributes:
        loaded: file or entry point -> the names of what it registered.
        errors: one `PluginError` per broken plugin; its text ends with the traceback.
    """

    loaded: dict[str, tuple[str, ...]] = field(default_factory=dict)
    errors: list[PluginError] = field(default_factory=list)


@dataclass
class _Loaded:
    names: tuple[str, ...]
    file: PluginFile | None = None
    modules: tuple[str, ...] = ()
    close: Callable[[], None] | None = None


class PluginLoader:
    """The plugins of one package: loaded each whole or not at all, once, and kept in line with
    path, entry points and explicit calls.

    Args:
        groups: of its entry points.
        path: where the environment says that plugins are, each place with its variable.
        transaction: a context that gives a list and, at its end, has put the names of what was
            registered within it there; an exception takes all of that back.
        forget: takes back what a plugin registered under a name; no error when it is gone.
        locked: a context in which no other thread registers; by default a lock of the loader's own.
        open_library: loads a shared library, raising `PluginError`, and returns what closes it;
            None where libraries are no plugins.
        built_in: gives the plugins of this package that are wanted now, by name what an entry
            point would say (`module:callable`). They are loaded first.
    """

    def __init__(
        self,
        groups: str | tuple[str, ...],
        path: Callable[[], Mapping[Path, str]],
        *,
        transaction: Callable[[], AbstractContextManager[list[str]]],
        forget: Callable[[str], None],
        locked: Callable[[], AbstractContextManager[object]] | None = None,
        open_library: Callable[[Path], Callable[[], None]] | None = None,
        built_in: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        own = threading.RLock()
        self._groups = (groups,) if isinstance(groups, str) else groups
        self._path = path
        self._transaction = transaction
        self._forget = forget
        self._open_library = open_library
        self._built_in = built_in
        self._own_keys: set[str] = set()
        self._locked = (lambda: own) if locked is None else locked
        self._explicit: dict[Path, str] = {}
        self._state: dict[str, _Loaded] = {}
        self._loading: set[str] = set()

    def load(
        self, places: Sequence[str | os.PathLike[str]] = (), *, built_in: bool = True
    ) -> PluginReport:
        """Return the report of `places`, the path and the entry points, whose plugins are loaded.

        The path is read again at every call: a file whose content is unchanged stays as it is, a
        changed one is loaded anew, one that is gone is unloaded. `places` (files, folders and
        packages) come first and stay until `unload`. A plugin that raises registers nothing and
        becomes an error in the report; the others load. A plugin may call this itself: it then
        finds what is loaded already, and not the plugins that are being loaded. Without
        `built_in` the package's own plugins stay as they are: not loaded, or loaded before.
        """
        report = PluginReport()
        wanted = self._built_in()
        with self._locked():
            self._explicit.update(dict.fromkeys(map(Path, places), "an explicit call"))
            # Explicit places come first; one that the path has too stays explicit.
            files, report.errors = plugin_files(
                {**self._explicit, **self._path(), **self._explicit},
                libraries=self._open_library is not None,
            )
            own = {f"{name} = {value}": (name, value) for name, value in wanted.items()}
            if not built_in:
                own = {key: entry for key, entry in own.items() if key in self._state}
            self._drop_stale(files, own.keys())
            for key, (name, value) in own.items():
                from importlib.metadata import EntryPoint  # see read_entry_points

                self._load(key, EntryPoint(name, value, self._groups[0]), report)
            for file in files:
                self._load(str(file.path), file, report)
            for group in self._groups:
                for entry in entry_points(group):
                    self._load(f"{entry.name} = {entry.value}", entry, report)
        return report

    def load_again(self) -> None:
        """Let the next `load` load everything anew: what plugins registered was forgotten."""
        with self._locked():
            for key in list(self._state):
                self._unload(key)

    def unload(self, *, keep_libraries: bool = False) -> None:
        """Forget what plugins registered, explicit places, and the modules of plugin files.

        Args:
            keep_libraries: leave loaded what has a `close` of its own (shared libraries), because
                their code may still be in use; by default these are closed too.
        """
        with self._locked():
            self._explicit.clear()
            for key, loaded in list(self._state.items()):
                if not (keep_libraries and loaded.close is not None):
                    self._unload(key)

    def _drop_stale(self, files: list[PluginFile], own: Collection[str]) -> None:
        current = {str(file.path): file for file in files}
        for key, loaded in list(self._state.items()):
            if loaded.file is not None and current.get(key) != loaded.file:
                self._unload(key)
        for key in self._own_keys & self._state.keys() - set(own):
            self._unload(key)
        self._own_keys.update(own)

    def _load(self, key: str, source: PluginFile | EntryPoint, report: PluginReport) -> None:
        if key in self._loading:
            return
        if key not in self._state:
            self._loading.add(key)
            try:
                self._state[key] = self._loaded(source)
            except PluginError as error:
                report.errors.append(with_traceback(error))
                return
            finally:
                self._loading.remove(key)
        report.loaded[key] = self._state[key].names

    def _loaded(self, source: PluginFile | EntryPoint) -> _Loaded:
        before = set(sys.modules)
        close = None
        with self._transaction() as names:
            if not isinstance(source, PluginFile):
                load_entry_point(source)
            elif source.is_library:
                assert self._open_library is not None, "plugin_files gives none otherwise"
                close = self._open_library(source.path)
            else:
                load_file(source)
        if isinstance(source, PluginFile):
            return _Loaded(tuple(names), source, close=close)
        return _Loaded(tuple(names), modules=tuple(_modules_since(source, before)))

    def _unload(self, key: str) -> None:
        loaded = self._state.pop(key)
        for name in loaded.names:
            self._forget(name)
        if loaded.close is not None:
            loaded.close()
        elif loaded.file is not None:
            unload_file(loaded.file)
        for module in loaded.modules:
            sys.modules.pop(module, None)


def _entry_error(entry: EntryPoint, error: BaseException) -> PluginError:
    """Return the error for a plugin that raised or exited; Ctrl-C passes through."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    return PluginError(
        f"entry point {entry.name!r} = {entry.value} of group {entry.group!r} raised "
        f"{_error_text(error)}"
    )


def _error_text(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as second:
        return f"{type(error).__name__}, whose text raised {type(second).__name__}"


def _forget_modules(entry: EntryPoint, before: set[str]) -> None:
    """Forget the package's modules, so that the next attempt runs it whole."""
    for name in _modules_since(entry, before):
        del sys.modules[name]


def _modules_since(entry: EntryPoint, before: set[str]) -> list[str]:
    """Return the package's modules imported since then, none of bringup's."""
    root = entry.value.partition(":")[0].strip().partition(".")[0]
    if root == _PACKAGE:
        return []
    return [
        name
        for name in [*sys.modules]
        if name not in before and (name == root or name.startswith(f"{root}."))
    ]


def _paths_in(place: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    if place.is_file():
        if place.suffix not in suffixes:
            files = " or ".join(suffixes)
            raise ValueError(f"expected a {files} file, a folder or a package")
        yield place
    elif not place.is_dir():
        raise FileNotFoundError("no such file or folder")
    elif (place / "__init__.py").is_file():
        yield place / "__init__.py"
    else:
        for item in sorted(place.iterdir()):
            if item.name.startswith(("_", ".")):
                continue
            if item.suffix in suffixes and item.is_file():
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
