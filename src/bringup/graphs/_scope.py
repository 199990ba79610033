"""Scopes: which module, or which named part of the code, a captured operator belongs to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

__all__ = ["ScopeTracker"]


class ScopeTracker:
    """Follows module calls and `graphs.scope` on the capturing thread, and tells where it is.

    Args:
        changed: called with the new scope, `"encoder.layer.0"`, whenever it changes.
    """

    def __init__(self, changed: Callable[[str], None]) -> None:
        self._changed = changed
        self._stack: list[tuple[torch.nn.Module | None, str]] = []
        self._paths: dict[torch.nn.Module, str] = {}
        self._handles: list[Any] = []

    def start(self) -> None:
        """Installs the global module hooks."""
        self._handles = [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
        ]

    def stop(self) -> None:
        """Removes them."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @contextmanager
    def named(self, name: str) -> Iterator[None]:
        """Adds segments for the time of a `with` block."""
        depth = len(self._stack)
        self._push(None, self._join(name))
        try:
            yield
        finally:
            self._pop_to(depth)

    def _enter_module(self, module: torch.nn.Module, _args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        parent = next((m for m, _ in reversed(self._stack) if m is not None), None)
        if parent is None or module not in self._paths:
            self._paths.update({m: path for path, m in module.named_modules()})
            relative = ""
        else:
            relative = self._paths[module].removeprefix(self._paths[parent]).removeprefix(".")
        self._push(module, self._join(relative))

    def _leave_module(self, module: torch.nn.Module, _args: Any, _result: Any) -> None:
        if torch.compiler.is_compiling():
            return
        depths = [depth for depth, (entered, _) in enumerate(self._stack) if entered is module]
        if depths:
            self._pop_to(depths[-1])

    def _join(self, name: str) -> str:
        current = self._stack[-1][1] if self._stack else ""
        return ".".join(part for part in (current, name.removeprefix("_orig_mod")) if part)

    def _push(self, module: torch.nn.Module | None, scope: str) -> None:
        self._stack.append((module, scope))
        self._changed(scope)

    def _pop_to(self, depth: int) -> None:
        del self._stack[depth:]
        self._changed(self._stack[-1][1] if self._stack else "")
