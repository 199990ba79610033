"""What a capture takes as given and replays check: content of modules, gradients, optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from bringup.graphs._gradients import GivenGradients
from bringup.graphs._optimizers import GivenOptimizer
from bringup.graphs._reachable import Found, can_hold_tensors, held_by
from bringup.graphs._source_location import capture_error

_KINDS = {"_parameters": "parameter", "_buffers": "buffer"}


class Given:
    """Everything that one capture takes as given; `predates`: whether a tensor was before."""

    def __init__(self, predates: Callable[[torch.Tensor], bool]) -> None:
        self.held = HeldTensors(predates)
        self.gradients = GivenGradients()
        self._optimizers: dict[int, torch.optim.Optimizer] = {}

    def add(self, found: Sequence[Found]) -> None:
        """Remember what the captured code can reach, as it is now."""
        self.held.add(found)
        for name, value, _ in found:
            self.gradients.see(name, value)

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Remember one that is about to step."""
        self._optimizers[id(optimizer)] = optimizer
        self.gradients.see_optimizer(optimizer)

    def settle(
        self, native: Any, watch: Any, ran: Iterable[torch.nn.Module]
    ) -> list[GivenOptimizer]:
        """Tell the captured graph everything; return the optimizers, for `refresh`. Raises
        `CaptureError` where the run has put another tensor in the place of one that it reads.
        """
        self.held.check(watch)
        watch_modules(watch, ran, self.held.modules)
        optimizers = [GivenOptimizer(one) for one in self._optimizers.values()]
        for optimizer in optimizers:
            optimizer.hand_to(watch)
        self.gradients.hand_to(native, watch)
        return optimizers


class HeldTensors:
    """The tensors that captured code finds in modules, containers and objects before it uses them:
    after `self.state = f(self.state)` a replay would read the former tensor for ever.
    """

    def __init__(self, predates: Callable[[torch.Tensor], bool]) -> None:
        self.modules: list[torch.nn.Module] = []
        self._predates = predates
        self._held: dict[int, Found] = {}

    def add(self, found: Sequence[Found]) -> None:
        """Remember what is held now, of what was not remembered before."""
        of_the_run: set[int] = set()  # to keep them would keep results of the run
        kept: list[Found] = []
        for name, value, all_held in reversed(found):
            held = {key: item for key, item in all_held.items() if can_hold_tensors(type(item))}
            tensors = {key for key, item in held.items() if issubclass(type(item), torch.Tensor)}
            fresh = {key for key in tensors if not self._predates(held[key])}  # results of the run
            if issubclass(type(value), torch.nn.Module):
                self.modules.append(value)
                held = {key: item for key, item in held.items() if key not in fresh}
            elif fresh or not of_the_run.isdisjoint(map(id, held.values())):
                of_the_run.add(id(value))
                continue
            if held:
                kept.append((name, value, held))
        for row in reversed(kept):
            self._held.setdefault(id(row[1]), row)

    def check(self, watch: Any) -> None:
        """Raise `CaptureError` for a tensor that the graph reads and the run replaced."""
        compared: set[tuple[int, int]] = set()
        for name, value, held in self._held.values():
            self._compare(watch, name, held, held_by(value), compared)

    def _compare(
        self,
        watch: Any,
        name: str,
        former: dict[str, Any],
        now: dict[str, Any],
        compared: set[tuple[int, int]],
    ) -> None:
        for key, before in former.items():
            after = now.get(key)
            if after is before or after is None or (id(before), id(after)) in compared:
                continue
            if issubclass(type(before), torch.Tensor):
                if issubclass(type(after), torch.Tensor) and watch.is_replaced(before, after):
                    raise capture_error(
                        f"the run reads '{name}{key}' and puts another tensor in its place: a"
                        " replay would read the former one again. Write it in place, with copy_"
                        " (of transformers' caches, StaticCache does)"
                    )
            elif id(before) in self._held:
                # another list or object, in which the former's tensors may be
                compared.add((id(before), id(after)))
                inner = self._held[id(before)][2]
                self._compare(watch, name + key, inner, held_by(after), compared)


def watch_modules(
    watch: Any, ran: Iterable[torch.nn.Module], known: Iterable[torch.nn.Module] = ()
) -> None:
    """Add what the graph reads and modules hold: tensors, random generators, the submodules on the
    way to them, and whether a module that `ran` is in training mode. `known`: others that the
    captured code can reach.
    """
    called = _with_compiled(ran)
    seen: set[torch.nn.Module] = set()
    for module in (*called, *known):
        if module not in seen:
            _watch_tree(watch, module, "", type(module).__name__, called, seen)


def _with_compiled(ran: Iterable[torch.nn.Module]) -> dict[torch.nn.Module, None]:
    """Return the modules in order; a compiled one stands for all in it, which runs unseen."""
    called: dict[torch.nn.Module, None] = {}
    for module in ran:
        original = dict(vars(module).get("_modules", {}).items()).get("_orig_mod")
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
    """Return whether anything in the module is watched."""
    seen.add(module)
    used = module in called
    if isinstance(module, torch.jit.ScriptModule):
        return _watch_script(watch, module, path, root, used)
    held = module.__dict__
    if used:
        watch.add_slot(held, "training", f"'training' of {_where(path, root)}")
    for dictionary, key, kind in _read_slots(watch, held, used):
        watch.add_slot(dictionary, key, f"{kind} '{_join(path, key)}' of {root}")
        used = True
    children: dict[str, torch.nn.Module | None] = held.get("_modules", {})
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
    """Return (dictionary, key, kind) of each slot that the graph depends on."""
    for name, kind in _KINDS.items():
        dictionary = held.get(name, {})
        for key, value in dictionary.items():
            # a bias that is missing can be given later
            if watch.reads(value) if value is not None else called:
                yield dictionary, key, kind
    for key, value in held.items():
        if _is_read(watch, value) or (called and isinstance(value, torch.Generator)):
            yield held, key, "attribute"


def _watch_script(watch: Any, script: Any, path: str, root: str, called: bool) -> bool:
    """Watch a TorchScript module with its content, which C++ holds; return whether it has any."""
    rows = []
    for below, module in script.named_modules():
        at = _join(path, below)
        names = torch._C.ConcreteModuleType.from_jit_type(module._c._type()).get_attributes()
        read = [key for key in names if _is_read(watch, getattr(module, key))]
        called = called or bool(read)
        texts = {
            "training": f"'training' of {_where(at, root)}",
            **{key: f"attribute '{_join(at, key)}' of {root}" for key in read},
            **{
                key: f"submodule '{_join(at, key)}' of {root}" for key, _ in module.named_children()
            },
        }
        rows.append((module, texts))
    for module, texts in rows if called else ():
        attributes = {key: getattr(module, key) for key in texts}
        watch.mirror(module, attributes)
        for key, text in texts.items():
            watch.add_slot(attributes, key, text)
    return called


def _is_read(watch: Any, value: Any) -> bool:
    return issubclass(type(value), torch.Tensor) and bool(watch.reads(value))


def _where(path: str, root: str) -> str:
    return f"module '{path}' of {root}" if path else f"module {root}"


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
