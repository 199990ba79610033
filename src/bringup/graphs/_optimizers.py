"""What a capture takes as given of optimizers that step in it: their groups and their state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from bringup.errors import CaptureError
from bringup.graphs._scope import steps_followed
from bringup.graphs._source_location import capture_error


class GivenOptimizer:
    """An optimizer at the end of the capture in which it stepped."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._name = type(optimizer).__name__
        self._groups, self._state = optimizer.param_groups, optimizer.state
        self._options = [dict(group) for group in self._groups]
        self._entries = {
            parameter: (self._state[parameter], dict(self._state[parameter]))
            for group in self._groups
            for parameter in group["params"]
            if isinstance(self._state.get(parameter), dict)
        }

    def hand_to(self, watch: Any) -> None:
        """Tell the graph's watch where it is."""
        held = vars(self._optimizer)
        for key in ("state", "param_groups"):
            if key in held:
                watch.add_slot(held, key, f"'{key}' of {self._name}")
        watch.add_list(self._groups, f"'param_groups' of {self._name}")
        for number, group in enumerate(self._groups):
            where = f"of group {number} of {self._name}"
            watch.add_list(group["params"], f"'params' {where}")
            for key, value in group.items():
                if isinstance(value, torch.Tensor):
                    watch.add_slot(group, key, f"'{key}' {where}")
        names = self._names()
        for parameter in self._entries:
            watch.add_slot(self._state, parameter, f"the state of {names[parameter]}")
        for parameter, (entries, values) in self._entries.items():
            for key, value in values.items():
                if isinstance(value, torch.Tensor) and watch.reads(value):
                    what = f"state '{key}' of {names[parameter]}"
                    watch.add_slot(entries, key, what, compares_memory=False)
                    watch.name_tensor(value, what)

    def refresh(self) -> Callable[[], None]:
        """Compare with what the optimizer has now; return what copies its state into the captured
        tensors, which it has again then. Raises `CaptureError` where the graph cannot compute
        with it.
        """
        groups, state = self._optimizer.param_groups, self._optimizer.state
        if len(groups) != len(self._options):
            self._refuse(f"has {len(groups)} groups, and had {len(self._options)}")
        names = self._names()
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        for number, (now, then) in enumerate(zip(groups, self._options, strict=True)):
            if list(map(id, now["params"])) != list(map(id, then["params"])):
                self._refuse(f"has other parameters in group {number}")
            self._compare(f"group {number}", now, then, copies)
        for parameter, (_, values) in self._entries.items():
            entries = state.get(parameter, {})
            self._compare(f"the state of {names[parameter]}", entries, values, copies)
        return lambda: self._take(copies, [dict(group) for group in groups], dict(state))

    def _compare(
        self, where: str, now: dict[str, Any], then: dict[str, Any], copies: list[Any]
    ) -> None:
        for key, former in then.items():
            value = now.get(key)
            if value is former or key == "params":
                continue
            if isinstance(former, torch.Tensor) and isinstance(value, torch.Tensor):
                same = (value.shape, value.dtype, value.device)
                if same == (former.shape, former.dtype, former.device):
                    copies.append((former, value.detach().clone()))
                    continue
            if isinstance(former, torch.Tensor) or isinstance(value, torch.Tensor):
                self._refuse(f"has another kind of '{key}' in {where}")
            if key in self._options[0] and value != former:
                self._refuse(f"has {value!r} for '{key}' in {where}, and had {former!r}")

    def _take(self, copies: list[Any], groups: list[Any], state: dict[Any, Any]) -> None:
        """Give the captured objects, which the graph reads, the content of now."""
        with torch.no_grad():
            for target, source in copies:
                target.copy_(source)
        for group, then, now in zip(self._groups, self._options, groups, strict=True):
            kept = {key: one for key, one in then.items() if isinstance(one, torch.Tensor)}
            group.update(now | kept | {"params": group["params"]})
        for parameter, (entries, values) in self._entries.items():
            kept = {key: one for key, one in values.items() if isinstance(one, torch.Tensor)}
            entries.update(state.get(parameter, {}) | kept)
            state[parameter] = entries
        self._state.clear()
        self._state.update(state)
        self._optimizer.param_groups, self._optimizer.state = self._groups, self._state

    def _refuse(self, what: str) -> None:
        raise CaptureError(
            f"refresh: {self._name} {what}: the captured step cannot compute with it. Put it back,"
            " or capture again (reset() first)"
        )

    def _names(self) -> dict[torch.Tensor, str]:
        return {
            parameter: f"parameter '{name}' of group {number} of {self._name}"
            for number, group in enumerate(self._options)
            for name, parameter in zip(
                group.get("param_names", range(len(group["params"]))), group["params"], strict=True
            )
        }


@contextmanager
def steps_seen(
    capturing: Callable[[], bool], began_to_step: Callable[[Any], None]
) -> Iterator[None]:
    """See which optimizers step; refuse a first step, whose state replays would renew."""
    before: dict[int, dict[Any, Any]] = {}

    def began(optimizer: Any) -> None:
        if not capturing():
            return
        began_to_step(optimizer)
        before[id(optimizer)] = {
            key: dict(state) if isinstance(state, dict) else state
            for key, state in optimizer.state.items()
        }

    def ended(optimizer: Any) -> None:
        former = before.pop(id(optimizer), None)
        if former is not None and _tensors_of(optimizer.state) != _tensors_of(former):
            optimizer.state.clear()
            optimizer.state.update(former)
            raise capture_error(
                f"{type(optimizer).__name__}.step() made new state, such as a momentum: replays"
                " would make it anew each time. Take a step before the capture"
            )

    with steps_followed(began, ended):
        yield


def _tensors_of(states: Any) -> set[int]:
    return {
        id(value)
        for state in states.values()
        for value in (state.values() if isinstance(state, dict) else ())
        if isinstance(value, torch.Tensor)
    }
