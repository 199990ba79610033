"""The models that one compiled graph serves: for each, what was made of its frozen weights.

Dynamo gives models of one class one graph, which gets the weights as arguments. Whose they are is
asked when a call has others than the kept sets: of the frames that lead here, which hold the
outermost module. A guard on it would compile anew for every model, eight times, and then never.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from bringup import settings
from bringup._native import torch_library
from bringup.compiler.aten import ordinary_torch
from bringup.compiler.freeze import Built, Weight
from bringup.errors import ContractError

_LOG = settings.logger("compiler")
_MOST_UNKNOWN = 16
"""How many sets of unknown modules are kept, the ones made last. Others are kept as
long as their module lives.
"""
_NUMBERS = itertools.count()
_ALIVE: weakref.WeakValueDictionary[int, FrozenModels] = weakref.WeakValueDictionary()

Roots = tuple[Any, ...]
"""The outermost modules that own the frozen weights of one call."""


@dataclass(frozen=True)
class FrozenReport:
    """What the frozen weights of one compiled graph take.

    Attributes:
        name: of the graph.
        models: how many sets of weights are kept: one for each model that it serves.
        memory_bytes: what was folded and packed from them, beside the weights themselves.
    """

    name: str
    models: int
    memory_bytes: int


def frozen_models() -> tuple[FrozenReport, ...]:
    """Return what frozen weights take of each compiled graph alive, in the order of compiles."""
    return tuple(models.report() for _, models in sorted(_ALIVE.items()))


@dataclass(eq=False)
class _Kept:
    """One set of weights; `live` is None once its model is gone."""

    live: tuple[Built, Any] | None
    marks: Sequence[object]
    roots: Sequence[weakref.ref[Any]] | None
    memory_bytes: int
    changes: Counter[int] = field(default_factory=Counter)
    reason: str | None = None
    """What the last call found changed: it looks at other elements than the next one."""

    def fits(self, arguments: list[Any]) -> bool:
        live = self.live
        if live is None:
            return False
        self.reason = live[1].change(arguments)
        return self.reason is None

    def is_of(self, roots: Roots) -> bool:
        return self.roots is not None and tuple(root() for root in self.roots) == roots


class FrozenModels:
    """Runs a compiled graph with what was folded from the weights of the model that calls.

    `build` makes it of a model's weights and the first arguments, `refold` of weights that changed
    (None: that raises `ContractError`) up to `most` times a weight (None: without end).
    """

    def __init__(
        self,
        name: str,
        weights: Sequence[Weight],
        build: Callable[[Sequence[Weight], list[Any]], Built],
        refold: Callable[[Sequence[Weight]], Built] | None,
        most: int | None,
    ) -> None:
        self._name = name
        self._weights = [dataclasses.replace(weight, tensor=None) for weight in weights]
        self._build, self._refold, self._most = build, refold, most
        self._lock = threading.Lock()  # of what follows, while it is changed
        self._all: list[_Kept] = []
        self._by_first: dict[int, _Kept] = {}  # by the identity of a call's first frozen weight
        self._first = weights[0].index
        _ALIVE[next(_NUMBERS)] = self

    def add(self, built: Built, roots: Roots | None) -> None:
        self._keep(_kept(built, roots))

    def report(self) -> FrozenReport:
        kept = [item for item in list(self._all) if item.live is not None]
        return FrozenReport(self._name, len(kept), sum(item.memory_bytes for item in kept))

    def run(self, arguments: list[Any]) -> Any:
        """Return the results of a call. The check sees another tensor, other memory or shape, a
        moved version counter and, where the host can read the memory, one element of each weight,
        another one at each call: a sparse write through `.data` or NumPy can go unseen.

        Raises `ContractError` that names a weight of the calling model that changed, where these
        are not folded again.
        """
        kept = self._by_first.get(id(arguments[self._first]))
        live = kept.live if kept is not None and kept.fits(arguments) else None
        built, watch = live or self._found(arguments, kept)
        watch.join_capture(arguments)
        return built.run(arguments)

    def _found(self, arguments: list[Any], changed: _Kept | None) -> tuple[Built, Any]:
        with self._lock:
            self._all = [item for item in self._all if item.live is not None]
            others = (item for item in self._all if item is not changed)
            kept = next((item for item in others if item.fits(arguments)), None)
            if kept is None:
                kept = self._made(arguments)
            by_first = {key: item for key, item in self._by_first.items() if item in self._all}
            self._by_first = {**by_first, id(arguments[self._first]): kept}
            assert kept.live is not None  # its model is calling
            return kept.live

    def _made(self, arguments: list[Any]) -> _Kept:
        """Return what is made for weights of another model, or for changed ones."""
        roots = _roots(self._weights, arguments)
        if roots is None:
            former = self._by_first.get(id(arguments[self._first]))
        else:
            former = next((item for item in self._all if item.is_of(roots)), None)
        if former is not None and former.live is not None:
            kept = self._changed(former, former.live[0], arguments, roots)
            self._all.remove(former)
        else:
            kept = _kept(self._build(_given(self._weights, arguments), arguments), roots)
        self._keep(kept)
        return kept

    def _changed(
        self, former: _Kept, built: Built, arguments: list[Any], roots: Roots | None
    ) -> _Kept:
        if self._refold is None:
            raise ContractError(
                f"{former.reason}: call torch.compiler.reset() to compile again, or "
                'compile with options={"freeze": True, "on_weight_change": "refold"} or without '
                "freezing"
            )
        changes = former.changes
        marks = [_mark(arguments[weight.index]) for weight in built.frozen]
        indices = [weight.index for weight in built.frozen]
        moved = [
            index
            for index, one, other in zip(indices, former.marks, marks, strict=True)
            if one != other
        ]
        changes.update(moved or indices)
        weights = _given(built.frozen, arguments)
        most = self._most
        stay = [item for item in weights if most is None or changes[item.index] <= most]
        if len(stay) < len(weights):
            names = ", ".join(item.name for item in weights if item not in stay)
            _LOG.warning("%s: no longer frozen, since they go on changing: %s", self._name, names)
        # what is watched is what was there before it was folded
        watch = _watch(stay)
        kept = _kept(self._refold(stay), roots, watch)
        kept.changes = changes
        return kept

    def _keep(self, kept: _Kept) -> None:
        self._all.append(kept)
        unknown = [item for item in self._all if item.roots is None]
        for item in unknown[:-_MOST_UNKNOWN]:
            self._all.remove(item)
        report = self.report()
        _LOG.info(
            "%s keeps the frozen weights of %d models, %.1f MB beside them",
            *(self._name, report.models, report.memory_bytes / 1e6),
        )


def _kept(built: Built, roots: Roots | None, watch: Any = None) -> _Kept:
    watch = _watch(built.frozen) if watch is None else watch
    watch.set_constants(built.constants)
    weights = {weight.tensor.untyped_storage().data_ptr() for weight in built.frozen}
    plain = [item for item in built.constants if item.layout is torch.strided]
    own = {item.untyped_storage().data_ptr(): item.untyped_storage() for item in plain}
    kept = _Kept(
        # torch.utils.swap_tensors allows no other owner of a parameter
        live=(
            dataclasses.replace(
                built, frozen=[dataclasses.replace(item, tensor=None) for item in built.frozen]
            ),
            watch,
        ),
        marks=[_mark(weight.tensor) for weight in built.frozen],
        roots=None,
        memory_bytes=sum(item.nbytes() for key, item in own.items() if key not in weights),
    )

    def forget(_: object) -> None:  # no lock: the garbage collector may call it anywhere
        kept.live = None

    kept.roots = None if roots is None else [weakref.ref(root, forget) for root in roots]
    return kept


def _given(weights: Sequence[Weight], arguments: list[Any]) -> list[Weight]:
    return [dataclasses.replace(item, tensor=arguments[item.index]) for item in weights]


def _mark(tensor: Any) -> object:
    """Return what identifies a weight and its counted writes."""
    return tensor.data_ptr(), None if tensor.is_inference() else tensor._version


def _watch(frozen: Sequence[Weight]) -> Any:
    watch = torch_library("freezing weights").graphs.FrozenWeights()
    with ordinary_torch():
        for weight in frozen:
            watch.add(weight.name, weight.tensor, weight.index)
    return watch


def _roots(weights: Sequence[Weight], arguments: list[Any]) -> Roots | None:
    """Return the outermost modules with a call's weights, from the calling frames, or None."""
    if any(weight.root is None for weight in weights):
        return None
    names = {str(weight.root): None for weight in weights}
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        scope = {"L": frame.f_locals, "G": frame.f_globals}
        roots = {name: _value(name, scope) for name in names}
        if all(isinstance(root, torch.nn.Module) for root in roots.values()) and all(
            _value(f"root{item.path}", {"root": roots[str(item.root)]}) is arguments[item.index]
            for item in weights
        ):
            return tuple(roots.values())
        frame = frame.f_back
    return None


def _value(expression: str, scope: dict[str, Any]) -> Any:
    """Return the value of a Dynamo place name in a frame, or None."""
    try:
        return eval(expression, scope)
    except Exception:
        return None
