"""Runs something once a module is imported, without importing it: Dynamo alone takes a second."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

waiting: dict[str, list[Callable[[], object]]] = {}


def after_import(name: str, action: Callable[[], object]) -> None:
    """Call `action()` now if the module `name` is imported, else right after its import."""
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        action()
        return
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
    waiting.setdefault(name, []).append(action)


class Finder(importlib.abc.MetaPathFinder):
    """Wraps the loader of an awaited module; removes itself when no other is awaited."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in waiting:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, name)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any, name: str) -> None:
        self._loader = loader
        self._name = name

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        for action in waiting.pop(self._name, []):
            action()
        if not waiting:
            sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, Finder)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
