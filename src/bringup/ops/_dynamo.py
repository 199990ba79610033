"""Teaches Dynamo that a kernel operator's callable is its torch.ops operator.

The substitution is installed when Dynamo is imported, which is expensive: nothing here imports it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

__all__ = ["substitute"]

_DYNAMO = "torch._dynamo"
_waiting: list[tuple[Callable[..., Any], Callable[..., Any]]] = []


def substitute(function: Callable[..., Any], traceable: Callable[..., Any]) -> None:
    """Makes Dynamo trace a call of the builtin `function` as a call of the Python function
    `traceable`, now or once Dynamo is imported.
    """
    module = sys.modules.get(_DYNAMO)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        _install(function, traceable)
        return
    if not _waiting:
        sys.meta_path.insert(0, _AfterImport())
    _waiting.append((function, traceable))


def _install(function: Callable[..., Any], traceable: Callable[..., Any]) -> None:
    import torch

    torch.compiler.substitute_in_graph(function, skip_signature_check=True)(traceable)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Wraps the loader of Dynamo once, to install what is waiting right after its import."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _DYNAMO:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        waiting = list(_waiting)
        _waiting.clear()
        for function, traceable in waiting:
            _install(function, traceable)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
