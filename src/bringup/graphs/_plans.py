"""Update plans: which host arguments of captured calls come from which inputs of the captured
function. A compiler's plan is data (JSON), bound to the graph of the compiled function, and
turns the inputs of a call into an update.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from bringup.errors import UpdateError
from bringup.graphs._content import CapturedContent
from bringup.graphs._graph import CapturedGraph
from bringup.graphs._slots import HostValue

_CONSTANTS = (bool, int, float, str, type(None))
VERSION = 1


@dataclass(frozen=True)
class Input:
    """An input of the captured function, by its position.

    Attributes:
        index: its position among the arguments, from 0.
    """

    index: int


@dataclass(frozen=True)
class Constant:
    """A value that was known when the plan was made: None, a bool, an int, a float or a str."""

    value: bool | int | float | str | None

    def __post_init__(self) -> None:
        if isinstance(self.value, torch.Tensor):
            raise UpdateError("update plan: a tensor constant: make it an input of the function")
        if not isinstance(self.value, _CONSTANTS):
            raise UpdateError(
                f"update plan: unsupported constant {self.value!r} ({type(self.value).__name__}):"
                " a constant is None, a bool, an int, a float or a str"
            )


Source: TypeAlias = Input | Constant | tuple[Input | Constant, ...]
"""Where an argument comes from; a tuple for a list, element by element."""


@dataclass(frozen=True)
class PlannedCall:
    """A captured call and the sources of its arguments.

    Attributes:
        op: the operator, `"ns::op"` or `"ns::op.overload"`.
        updates: sources by the keys of its handler, or by the names of its arguments.
    """

    op: str
    updates: Mapping[str, Source]

    def __post_init__(self) -> None:
        if not self.updates:
            raise UpdateError(f"update plan: {self.op} has no updates")


@dataclass(frozen=True)
class UpdatePlan:
    """The updates of every call of one function, in the order of their calls.

    Attributes:
        calls: what each of them gets.
    """

    calls: tuple[PlannedCall, ...]

    @property
    def inputs(self) -> frozenset[int]:
        """Return the positions of all inputs that some call gets."""
        return frozenset(
            one.index
            for call in self.calls
            for source in call.updates.values()
            for one in _elements(source)
            if isinstance(one, Input)
        )

    def resolve(self, inputs: Sequence[Any]) -> list[dict[str, HostValue]]:
        """Return what each call gets, for the inputs of one call of the function: what
        `CapturedGraph.update` takes as a list.

        Args:
            inputs: of the function, by position.

        Raises:
            UpdateError: a source is an input that there is not.
        """
        return [
            {key: _value(source, inputs) for key, source in call.updates.items()}
            for call in self.calls
        ]

    def bind(self, graph: CapturedGraph) -> BoundPlan:
        """Return the plan for a graph that was captured of its function.

        Args:
            graph: holds a capture.

        Raises:
            UpdateError: the graph has more or fewer calls of the planned operators, others, or in
                another order, or some and the plan has none; a call has no slot of a planned name,
                or another value than a planned constant.
            CaptureError: nothing is captured.
        """
        content = graph._captured("UpdatePlan.bind")
        updatable = content.native.updatable()
        if updatable and not self.calls:
            raise UpdateError(
                "update plan: missing: it has no calls, and the graph captured"
                f" {', '.join(op for _, op, _ in updatable)}. That of cached compiled code is as"
                " old as the code: compile it again"
            )
        planned = {_base(call.op) for call in self.calls}
        found = [
            (op, _slots_by_key(content, node)) for node, op, _ in updatable if _base(op) in planned
        ]
        if len(found) != len(self.calls):
            raise UpdateError(
                f"update plan: length mismatch: it has {len(self.calls)} calls, and the graph"
                f" captured {len(found)} of these operators: {', '.join(op for op, _ in found)}"
            )
        sources: list[tuple[str, Source]] = []
        values = graph.slots
        for number, (call, (op, slots)) in enumerate(zip(self.calls, found, strict=True)):
            if not _is_same(call.op, op):
                raise UpdateError(
                    f"update plan: op mismatch: call {number} is {call.op}, and the graph captured"
                    f" {op}"
                )
            for key, source in call.updates.items():
                if key not in slots:
                    raise UpdateError(
                        f"update plan: unknown key '{key}' of {op}, which has"
                        f" {', '.join(slots) or 'no slots'}"
                    )
                if any(isinstance(one, Input) for one in _elements(source)):
                    sources.append((slots[key], source))
                elif _value(source, ()) != values[slots[key]].value:
                    raise UpdateError(
                        f"update plan: '{key}' of {op} is {_value(source, ())!r}, and the graph"
                        f" captured {values[slots[key]].value!r}"
                    )
        return BoundPlan(tuple(sources))

    def to_json(self) -> str:
        """Return the plan as JSON: `{"version": 1, "calls": [{"op": ..., "updates": {key:
        source}}]}`, where a source is `{"input": index}`, `{"constant": value}` or `{"list":
        [source, ...]}`.
        """
        calls = [
            {"op": call.op, "updates": {key: _plain(s) for key, s in call.updates.items()}}
            for call in self.calls
        ]
        return json.dumps({"version": VERSION, "calls": calls}, indent=1) + "\n"

    @staticmethod
    def from_json(text: str) -> UpdatePlan:
        """Return the plan that `to_json` wrote.

        Args:
            text: JSON.

        Raises:
            UpdateError: no JSON, another version, or an invalid entry or source, which it has.
        """
        try:
            read = json.loads(text)
        except ValueError as error:
            raise UpdateError(f"update plan: no JSON: {error}") from None
        if not isinstance(read, dict) or read.get("version") != VERSION:
            raise UpdateError(f"update plan: not of version {VERSION}: {text[:80]!r}")
        calls = read.get("calls")
        if not isinstance(calls, list):
            raise UpdateError("update plan: it has no list of calls")
        return UpdatePlan(tuple(_read_call(call) for call in calls))


@dataclass(frozen=True)
class BoundPlan:
    """A plan with the slots of one captured graph.

    Attributes:
        sources: of each slot that gets an input, by its name.

    Examples:
        >>> from bringup import graphs
        >>> bound = graphs.BoundPlan((("shift.by", graphs.Input(1)),))
        >>> bound.slots([torch.ones(2), 5])  # the inputs of a call of the function
        {'shift.by': 5}
    """

    sources: tuple[tuple[str, Source], ...]

    def slots(self, inputs: Sequence[Any]) -> dict[str, HostValue]:
        """Return what `update`, or `run(slots=)`, is given for a call with these inputs.

        Args:
            inputs: of the function, by position.

        Raises:
            UpdateError: a source is an input that there is not.
        """
        return {name: _value(source, inputs) for name, source in self.sources}


def _slots_by_key(content: CapturedContent, node: int) -> dict[str, str]:
    """Return the slots of one call, by the keys of its handler and the names of its arguments."""
    arguments = {index: name for index, name, _, _ in content.native.host_values(node)}
    places = content.places_of(node)
    slots = {arguments[place.argument]: place.name for place in places}
    slots.update({place.name.rpartition(".")[2]: place.name for place in places})
    return slots


def _value(source: Source, inputs: Sequence[Any]) -> Any:
    if isinstance(source, tuple):
        return [_value(one, inputs) for one in source]
    if isinstance(source, Constant):
        return source.value
    if not 0 <= source.index < len(inputs):
        raise UpdateError(
            f"update plan: input {source.index} is out of range: the call has {len(inputs)}"
        )
    return inputs[source.index]


def _elements(source: Source) -> Iterator[Input | Constant]:
    yield from source if isinstance(source, tuple) else (source,)


def _plain(source: Source) -> dict[str, Any]:
    if isinstance(source, tuple):
        return {"list": [_plain(one) for one in source]}
    return {"input": source.index} if isinstance(source, Input) else {"constant": source.value}


def _read_call(entry: Any) -> PlannedCall:
    fits = isinstance(entry, dict) and entry.keys() == {"op", "updates"}
    if not (fits and isinstance(entry["op"], str) and isinstance(entry["updates"], dict)):
        raise UpdateError(
            f"update plan: invalid entry {entry!r}: it has 'op', a name, and 'updates', a dict"
        )
    updates = {key: _read_source(source) for key, source in entry["updates"].items()}
    return PlannedCall(entry["op"], updates)


def _read_source(source: Any) -> Source:
    kinds: dict[str, Callable[[Any], Source]] = {
        "input": _read_input,
        "constant": Constant,
        "list": _read_list,
    }
    if not isinstance(source, dict) or len(source) != 1 or next(iter(source)) not in kinds:
        raise UpdateError(
            f"update plan: invalid source {source!r}: it is {{'input': index}}, {{'constant':"
            " value} or {'list': [source, ...]}"
        )
    ((kind, value),) = source.items()
    return kinds[kind](value)


def _read_input(index: Any) -> Input:
    if type(index) is not int or index < 0:
        raise UpdateError(f"update plan: invalid source: input {index!r} is no position")
    return Input(index)


def _read_list(items: Any) -> Source:
    if not isinstance(items, list):
        raise UpdateError(f"update plan: invalid source: {items!r} is no list")
    read = tuple(_read_source(item) for item in items)
    if not all(isinstance(one, (Input, Constant)) for one in read):
        raise UpdateError(f"update plan: invalid source: {items!r} is a list of lists")
    return read  # type: ignore[return-value]


def _base(op: str) -> str:
    return op.partition(".")[0]


def _is_same(planned: str, captured: str) -> bool:
    """Return whether a call is the planned one, or another overload in the place of a default."""
    ours, theirs = (op.partition(".")[2] or "default" for op in (planned, captured))
    return _base(planned) == _base(captured) and ours in (theirs, "default")
