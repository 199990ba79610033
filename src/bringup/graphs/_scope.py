"""Module calls in a capture: the scope of a captured operator, and the outermost calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from bringup._native import torch_library
from bringup.graphs._equality import Snapshot, snapshots
from bringup.graphs._reachable import local_variables


class _Current(threading.local):
    """What this thread follows, while it captures."""

    tracker: ScopeTracker | None = None
    steps: tuple[Callable[[Any], None], Callable[[Any], None]] | None = None


_current = _Current()


def _following() -> ScopeTracker | None:
    tracker = _current.tracker
    if tracker is None or torch.compiler.is_compiling() or tracker.paused():
        return None
    return tracker


def _module_entered(frame: FrameType) -> None:
    tracker = _following()
    if tracker is not None:
        call = local_variables(frame)
        tracker.enter_module(call["self"], call["args"], call["kwargs"])


def _module_left(frame: FrameType, result: Any, _raised: bool) -> None:
    tracker = _following()
    if tracker is not None:
        call = local_variables(frame)
        tracker.leave_module(call["self"], call["args"], call["kwargs"], result)


def _step_entered(frame: FrameType) -> None:
    if _current.steps is not None:
        _current.steps[0](local_variables(frame)["args"][0])


def _step_left(frame: FrameType, _result: Any, raised: bool) -> None:
    if _current.steps is not None and not raised:
        _current.steps[1](local_variables(frame)["args"][0])


def _call_watch() -> Any:
    """Watch calls on this thread alone; hooks would be compiled by other threads."""
    step = torch.optim.Optimizer.profile_hook_step.__code__
    wrapper = next(c for c in step.co_consts if getattr(c, "co_name", "") == "wrapper")
    module = torch.nn.Module._wrapped_call_impl.__code__
    watched = [(module, _module_entered, _module_left), (wrapper, _step_entered, _step_left)]
    return torch_library("capturing module calls").graphs.CallWatch(watched)


@contextmanager
def steps_followed(began: Callable[[Any], None], ended: Callable[[Any], None]) -> Iterator[None]:
    """Tell of the steps of optimizers on this thread, while a tracker follows it."""
    _current.steps = (began, ended)
    try:
        yield
    finally:
        _current.steps = None


@dataclass(frozen=True)
class ModuleCall:
    """The call of a module that no other module contained, seen in a capture."""

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    before: int
    after: int
    snapshots: dict[int, Snapshot]  # of objects among the arguments, before the call, by id


class OutermostCalls:
    """Watches outermost module calls in a capture; `seen`: how many operators came until now."""

    def __init__(self, seen: Callable[[], int]) -> None:
        self._seen = seen
        self._before = 0
        self._count = 0
        self._call: ModuleCall | None = None
        self._snapshots: dict[int, Snapshot] = {}

    def begin(self, arguments: Any) -> None:
        """Begin a call with this nest of arguments."""
        self._count += 1
        self._call = None  # of several none is kept: its results would keep their memory
        self._snapshots = snapshots(arguments) if self._count == 1 else {}
        self._before = self._seen()

    def end(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """It is over."""
        if self._count == 1:
            self._call = ModuleCall(
                module, args, kwargs, result, self._before, self._seen(), self._snapshots
            )

    def only(self) -> ModuleCall | str:
        """Return the call, when it was all that the block did, or why there is no such call."""
        call = self._call
        if self._count == 0:
            return "no module was called in the captured block"
        if self._count > 1 or call is None:
            return f"the captured block called {self._count} modules one after the other"
        name = type(call.module).__name__
        if call.before > 0 or call.after < self._seen():
            return f"the captured block ran operators outside the call of {name}"
        if call.module._forward_hooks or call.module._forward_pre_hooks:
            return f"{name} has forward hooks, which may change what it takes and gives"
        return call


class ScopeTracker:
    """Follows module calls and `graphs.scope` on the capturing thread. It calls `changed` with a
    new scope, `"encoder.layer.0"`, and `entered` with module and arguments before the first call
    of one that is no part of a module called before; `calls` hear of outermost ones. While
    `paused()`, it follows nothing.
    """

    def __init__(
        self,
        changed: Callable[[str], None],
        entered: Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any]], None],
        calls: OutermostCalls,
        paused: Callable[[], bool],
    ) -> None:
        self._changed = changed
        self._entered = entered
        self.calls = calls
        self.paused = paused
        self._stack: list[tuple[torch.nn.Module | None, str]] = []
        self._paths: dict[torch.nn.Module, str] = {}
        self._watch = _call_watch()
        self.called: dict[torch.nn.Module, None] = {}
        """Every module whose forward ran, outer ones first."""

    def start(self) -> None:
        """Follow module calls of this thread from now on."""
        _current.tracker = self
        self._watch.start()

    def stop(self) -> None:
        """Follow them no more."""
        self._watch.stop()
        _current.tracker = None

    @contextmanager
    def named(self, name: str) -> Iterator[None]:
        """Add segments for the time of a `with` block."""
        depth = len(self._stack)
        self._push(None, self._join(name))
        try:
            yield
        finally:
            self._pop_to(depth)

    def enter_branch(self) -> None:
        """Keep no result of a module that is called where a replay may not come."""
        if all(entered is None for entered, _ in self._stack):
            self.calls.begin(())

    def pause(self, paused: bool) -> None:
        """Follow nothing while a compiler works, which calls much and slowly then."""
        (self._watch.stop if paused else self._watch.start)()

    def enter_module(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Enter a module's call."""
        parent = next((m for m, _ in reversed(self._stack) if m is not None), None)
        first = module not in self.called and module not in self._paths
        if first or parent is None:
            if first:
                self._entered(module, args, kwargs)
            if parent is None:
                self.calls.begin((args, kwargs))
        self.called[module] = None
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
