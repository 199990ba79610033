"""What the modules that ran inside a capture hold, told to the graph's watch, which checks it
before every replay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from bringup.graphs._origin import capture_error

__all__ = ["HeldTensors", "watch_modules"]

_KINDS = {"_parameters": "parameter", "_buffers": "buffer"}


class HeldTensors:
    """Buffers and other tensors that modules hold before captured code uses them.

    A run that computes `self.state = f(self.state)` keeps its state in Python: a replay would read
    the former tensor for ever.
    """

    def __init__(self) -> None:
        self.modules: list[torch.nn.Module] = []
        self._slots: dict[tuple[int, str], tuple[str, dict[str, Any], torch.Tensor]] = {}

    def add(self, name: str, module: torch.nn.Module) -> None:
        """Remembers what one module holds now, unless it was remembered before."""
        self.modules.append(module)
        held = vars(module)
        for dictionary in (held.get("_buffers", {}), held):
            for key, value in dictionary.items():
                if isinstance(value, torch.Tensor):
                    slot = f"{name}.{key}", dictionary, value
                    self._slots.setdefault((id(dictionary), key), slot)

    def check(self, recorder: Any) -> None:
        """Raises `CaptureError` for a tensor that the graph reads and in whose place a module holds
        a result of the run.
        """
        for (_, key), (name, dictionary, former) in self._slots.items():
            now = dictionary.get(key)
            if now is former or not isinstance(now, torch.Tensor) or now.layout != torch.strided:
                continue
            if recorder.watch.reads(former) and not recorder.predates(now):
                raise capture_error(
                    f"the run reads '{name}' and puts a result of its own in its place: a replay"
                    " would read the former tensor again. Write it in place, with copy_"
                )


def watch_modules(
    watch: Any, ran: Iterable[torch.nn.Module], known: Iterable[torch.nn.Module] = ()
) -> None:
    """Adds what the graph reads and modules hold: parameters, buffers and other tensors,
    random generators, the submodules on the way to them, and whether a module that ran is in
    training mode.

    Args:
        watch: the native watch of the graph, after the capture.
        ran: the modules whose forward ran.
        known: others that the captured code can reach, such as those that a compiled function uses.
    """
    called = _with_compiled(ran)
    seen: set[torch.nn.Module] = set()
    for module in (*called, *known):
        if module not in seen:
            _watch_tree(watch, module, "", type(module).__name__, called, seen)


def _with_compiled(ran: Iterable[torch.nn.Module]) -> dict[torch.nn.Module, None]:
    """The modules in order; a compiled one stands for everything in it, which runs unseen."""
    called: dict[torch.nn.Module, None] = {}
    for module in ran:
        original = module.__dict__["_modules"].get("_orig_mod")
        called.update(dict.fromkeys([module] if original is None else original.modules()))
    return called


def _watch_tree(
    watch: Any,
    module: torch.nn.Module,
    path: str,
    root: str,
    called: dict[torch.nn.Module, None],
    seen: set[torch.nn.Module],
) -> bool:
    """Whether anything in the module is watched."""
    seen.add(module)
    held = module.__dict__
    used = module in called
    if used:
        where = f"module '{path}' of {root}" if path else f"module {root}"
        watch.add_slot(held, "training", f"'training' of {where}")
    for dictionary, key, kind in _read_slots(watch, held, used):
        watch.add_slot(dictionary, key, f"{kind} '{_join(path, key)}' of {root}")
        used = True
    children: dict[str, torch.nn.Module | None] = held["_modules"]
    for key, child in children.items():
        if child is None:
            continue
        below = child in called
        if child not in seen:
            below |= _watch_tree(watch, child, _join(path, key), root, called, seen)
        if below:
            watch.add_slot(children, key, f"submodule '{_join(path, key)}' of {root}")
            used = True
    return used


def _read_slots(
    watch: Any, held: dict[str, Any], called: bool
) -> Iterator[tuple[dict[str, Any], str, str]]:
    """(dictionary, key, kind) of what the graph depends on."""
    for name, kind in _KINDS.items():
        for key, value in held[name].items():
            # a bias that is missing can be given later
            if watch.reads(value) if value is not None else called:
                yield held[name], key, kind
    for key, value in held.items():
        is_read = isinstance(value, torch.Tensor) and watch.reads(value)
        if is_read or (called and isinstance(value, torch.Generator)):
            yield held, key, "attribute"


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
