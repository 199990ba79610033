"""Scopes: which module, or which named part of the code, a captured operator belongs to."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from bringup.graphs._reachable import local_variables
from bringup.graphs._run import OutermostCalls

__all__ = ["ScopeTracker"]


class _Current(threading.local):
    """The tracker of this thread, while it captures."""

    tracker: ScopeTracker | None = None


_current = _Current()


def _before_module(module: torch.nn.Module, args: Any) -> None:
    if not torch.compiler.is_compiling() and _current.tracker is not None:
        _current.tracker.enter_module(module, args, sys._getframe(1))


def _after_module(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> None:
    if not torch.compiler.is_compiling() and _current.tracker is not None:
        _current.tracker.leave_module(module, args, kwargs, result)


class _ModuleHooks:
    """The global module hooks, there while any thread captures.

    Dynamo guards on the functions and on the numbers they are registered under, so both are the
    same every time: a model that is compiled is not compiled anew for every capture.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._captures = 0
        self._handles: tuple[Any, ...] = ()

    def install(self) -> None:
        """For one capture more."""
        with self._lock:
            self._captures += 1
            if self._captures > 1:
                return
            if not self._handles:
                self._handles = (
                    register_module_forward_pre_hook(_before_module),
                    register_module_forward_hook(_after_module, with_kwargs=True, always_call=True),
                )
                return
            for handle, hook in zip(self._handles, (_before_module, _after_module), strict=True):
                handle.hooks_dict_ref()[handle.id] = hook
                for option in handle.extra_dict_ref:
                    option()[handle.id] = True

    def remove(self) -> None:
        """For one capture less."""
        with self._lock:
            self._captures -= 1
            if self._captures == 0:
                for handle in self._handles:
                    handle.remove()


_HOOKS = _ModuleHooks()


class ScopeTracker:
    """Follows module calls and `graphs.scope` on the capturing thread, and tells where it is.

    Args:
        changed: called with the new scope, `"encoder.layer.0"`, whenever it changes.
        entered: called with a module, its positional and its keyword arguments, before the first
            call of one that is no part of a module called before.
        calls: told of module calls that no other module contains.
    """

    def __init__(
        self,
        changed: Callable[[str], None],
        entered: Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any]], None],
        calls: OutermostCalls,
    ) -> None:
        self._changed = changed
        self._entered = entered
        self.calls = calls
        self._stack: list[tuple[torch.nn.Module | None, str]] = []
        self._paths: dict[torch.nn.Module, str] = {}
        self.called: dict[torch.nn.Module, None] = {}
        """Every module whose forward ran, outer ones first."""

    def start(self) -> None:
        """Follows module calls of this thread from now on."""
        _HOOKS.install()
        _current.tracker = self

    def stop(self) -> None:
        """Follows them no more."""
        _current.tracker = None
        _HOOKS.remove()

    @contextmanager
    def named(self, name: str) -> Iterator[None]:
        """Adds segments for the time of a `with` block."""
        depth = len(self._stack)
        self._push(None, self._join(name))
        try:
            yield
        finally:
            self._pop_to(depth)

    def enter_module(
        self, module: torch.nn.Module, args: tuple[Any, ...], caller: FrameType
    ) -> None:
        """A module is being called, by torch's code in this frame."""
        if module not in self.called and module not in self._paths:
            # torch gives hooks of all modules no keyword arguments before the call
            self._entered(module, args, local_variables(caller).get("kwargs", {}))
        self.called[module] = None
        parent = next((m for m, _ in reversed(self._stack) if m is not None), None)
        if parent is None:
            self.calls.begin()
        if parent is None or module not in self._paths:
            self._paths.update({m: path for path, m in module.named_modules()})
            relative = ""
        else:
            relative = self._paths[module].removeprefix(self._paths[parent]).removeprefix(".")
        self._push(module, self._join(relative))

    def leave_module(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Its call is over, or has raised (then the result is None)."""
        depths = [depth for depth, (entered, _) in enumerate(self._stack) if entered is module]
        if depths:
            self._pop_to(depths[-1])
            if all(entered is None for entered, _ in self._stack):
                self.calls.end(module, args, kwargs, result)

    def _join(self, name: str) -> str:
        current = self._stack[-1][1] if self._stack else ""
        name = name.removeprefix("_orig_mod").removeprefix(".")  # a compiled module
        return ".".join(part for part in (current, name) if part)

    def _push(self, module: torch.nn.Module | None, scope: str) -> None:
        self._stack.append((module, scope))
        self._changed(scope)

    def _pop_to(self, depth: int) -> None:
        del self._stack[depth:]
        self._changed(self._stack[-1][1] if self._stack else "")
