"""The operators of a run, one by one: recorded on one side, compared on the other.

`Recorder` keeps every result of a run. `Comparer` watches a second run on another device: each
operator runs once more on the first device on copies of the very arguments that it has here, so
that what differs then is its own error; how far it is from the record is the accumulated one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from bringup.conformance._deviation import Deviation, leaf_deviations, limits, worst
from bringup.conformance._float64_reference import second_opinion
from bringup.conformance._module_paths import ModulePaths, Place
from bringup.conformance._samples import Mover, described, outcome, tensors

# What they return was not written.
UNINITIALISED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty"}
UNINITIALISED |= {"new_empty_strided", "resize_", "resize_as_"}
# They compute nothing, and `set_` would put the storage of a copy into a tensor.
_NO_ARITHMETIC = UNINITIALISED | {"set_", "record_stream", "is_pinned", "_pin_memory", "detach"}


@dataclass(frozen=True)
class OperatorDifference:
    """An operator whose results differ.

    Attributes:
        place: module, phase, operator, number of the call.
        number: how many operators the run called before it.
        result: which of its results: those that it returns, then those that it writes.
        deviation: how far, and where.
        arguments: dtypes and shapes of what it was given.
    """

    place: Place
    number: int
    result: int
    deviation: Deviation
    arguments: str

    def __str__(self) -> str:
        found = self.deviation
        said = f"{self.place}: "
        if found.kind == "form":
            return said + found.words
        where = f" at {list(found.index)}" if found.index else ""
        said += f"{found.got}{where}, expected {found.expected}"
        if found.kind == "value":
            said += f"; error {found.error:.2g} of the largest value, allowed {found.allowed:.2g}"
        return said + (f" ({found.words})" if found.words else "")


@dataclass
class Watched:
    """What was seen of a run.

    Attributes:
        operators: how many were called.
        compared: how many were compared on equal inputs.
        differences: those whose own error is too large, in the order of the run.
        excused: those whose own error has a reason, by the reason.
        not_compared: how many calls were not, by operator and reason.
        unaligned: operators that the other side did not call at this place.
        random: random operators; what they draw is the other side's from there on.
        first_accumulated: where the results first differ from the other side's run by more than one
            operator may.
        first_nonfinite: where a NaN or an infinity first appears in one run only.
        is_diverged: whether a random operator had no counterpart: results say nothing afterwards.
    """

    operators: int = 0
    compared: int = 0
    differences: list[OperatorDifference] = field(default_factory=list)
    excused: Counter[str] = field(default_factory=Counter)
    not_compared: Counter[str] = field(default_factory=Counter)
    unaligned: Counter[str] = field(default_factory=Counter)
    random: Counter[str] = field(default_factory=Counter)
    first_accumulated: OperatorDifference | None = None
    first_nonfinite: OperatorDifference | None = None
    is_diverged: bool = False


class Recorder(TorchDispatchMode):  # type: ignore[misc]  # torch has no types here
    """Keeps the results of every operator, on the host."""

    def __init__(self, paths: ModulePaths) -> None:
        super().__init__()
        self.results: dict[Place, list[Any]] = {}
        self._paths = paths

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        place = self._paths.place(func)
        result = func(*args, **named)
        if computes(func):
            found = _results(func, args, named, result)
            self.results[place] = [_on_host(value) for value in found]
        return result


class Comparer(TorchDispatchMode):  # type: ignore[misc]  # torch has no types here
    """Runs every operator on the other `device` as well, on copies of its arguments.

    To `isolate` replaces each result by that of the other run, so that no error accumulates.
    """

    def __init__(
        self,
        paths: ModulePaths,
        device: torch.device,
        recorded: dict[Place, list[Any]],
        isolate: bool,
    ) -> None:
        super().__init__()
        self.watched = Watched()
        self.place: Place | None = None  # where an error that ends the run happened
        self._paths = paths
        self._device = device
        self._recorded = recorded
        self._isolate = isolate

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run the operator on both devices and compares; gives this device's result."""
        named = kwargs or {}
        self.place = place = self._paths.place(func)
        watched = self.watched
        watched.operators += 1
        if not computes(func):
            return func(*args, **named)
        is_random = _is_random(func, args, named)
        copies, failed = (
            (None, None) if is_random else outcome(lambda: self._moved(func, args, named))
        )
        result = func(*args, **named)
        results = _results(func, args, named, result)
        if is_random:
            watched.random[place.operator] += 1
        elif failed is not None:
            watched.not_compared[f"{place.operator}: {described(failed)}"] += 1
        else:
            self._own_error(func, place, copies, results)
        self._beside_the_record(func, place, results, is_random)
        self.place = None
        return result

    def _moved(self, func: OpOverload, args: Any, named: Any) -> tuple[Any, Any, str]:
        """Return arguments on the other device, kept for a second opinion, and how they look."""
        there = Mover(self._device)((args, named))
        kept = Mover("cpu")(there) if func._schema.is_mutable else there
        return there, kept, _described(args, named)

    def _own_error(self, func: OpOverload, place: Place, copies: Any, results: list[Any]) -> None:
        (args, named), kept, looks = copies
        expected, failed = outcome(lambda: run(func, args, named))
        if failed is not None:
            self.watched.not_compared[f"{place.operator}: {described(failed)}"] += 1
            return
        self.watched.compared += 1
        pointwise = torch.Tag.pointwise in func.tags
        found = leaf_deviations(results, expected, pointwise=pointwise)
        for number, one in enumerate(found):
            if not one.exceeds:
                continue
            reason = one.kind == "value" and second_opinion(
                lambda a, k: run(func, a, k),
                kept,
                number,
                results[number],
                expected[number],
                partial(limits, found=one, pointwise=pointwise),
                pointwise,
            )
            if reason:
                self.watched.excused[f"{place.operator}: {reason}"] += 1
                continue
            self.watched.differences.append(
                OperatorDifference(place, self.watched.operators - 1, number, one, looks)
            )
            return

    def _beside_the_record(
        self, func: OpOverload, place: Place, results: list[Any], is_random: bool
    ) -> None:
        recorded = self._recorded.get(place)
        fits = recorded is not None and [_form(r) for r in results] == [_form(r) for r in recorded]
        if recorded is None or not fits:
            self.watched.unaligned[place.operator] += 1
            self.watched.is_diverged |= is_random
            return
        if not is_random and not self.watched.is_diverged:
            found = worst(leaf_deviations(results, recorded))
            if found.exceeds:
                self._accumulated(place, results, found)
        if is_random or self._isolate:
            _overwrite(results, recorded)

    def _accumulated(self, place: Place, results: list[Any], found: Deviation) -> None:
        watched = self.watched
        seen = OperatorDifference(place, watched.operators - 1, 0, found, "")
        watched.first_accumulated = watched.first_accumulated or seen
        if found.kind == "nonfinite":
            watched.first_nonfinite = watched.first_nonfinite or seen


def computes(func: OpOverload) -> bool:
    """Return whether an operator makes values: views and allocations do not."""
    return not func.is_view and func._schema.name.partition("::")[2] not in _NO_ARITHMETIC


def _is_random(func: OpOverload, args: Any, named: Any) -> bool:
    """Return whether the CPU's results depend on the seed; the tag says so too often."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    results = []
    with torch.random.fork_rng(devices=[]):
        for seed in (1, 2):
            torch.manual_seed(seed)
            copied, copied_named = Mover("cpu")((args, named))
            results.append(outcome(lambda a=copied, k=copied_named: run(func, a, k))[0])  # type: ignore[misc]
    one, other = results
    if one is None or other is None:
        return True
    return any(found.exceeds for found in leaf_deviations(one, other))


def run(func: OpOverload, args: Any, named: Any) -> list[Any]:
    """Return everything that a call of the operator gives: what it returns, then what it writes."""
    return _results(func, args, named, func(*args, **named))


def _results(func: OpOverload, args: Any, named: Any, result: Any) -> list[Any]:
    leaves = list(_pytree.tree_leaves(result))
    known = {id(leaf) for leaf in leaves}
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        given = named.get(argument.name, args[number] if number < len(args) else None)
        leaves += [tensor for tensor in tensors(given) if id(tensor) not in known]
    return leaves


def _on_host(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value


def _form(value: Any) -> object:
    if isinstance(value, Tensor):
        return tuple(value.shape), value.dtype
    return type(value)


def _overwrite(results: list[Any], recorded: list[Any]) -> None:
    """Overwrite values by the other run's, unseen by autograd, which saved these tensors."""
    for mine, other in zip(results, recorded, strict=True):
        if isinstance(mine, Tensor) and mine.layout is torch.strided and mine.numel():
            with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(mine):
                mine.copy_(other)


def _described(args: Any, named: Any) -> str:
    shown = []
    for leaf in _pytree.tree_leaves((args, named)):
        if isinstance(leaf, Tensor):
            shown.append(f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}")
        elif leaf is not None:
            shown.append(str(leaf))
    return ", ".join(shown)
