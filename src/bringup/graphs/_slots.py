"""Slots: the arguments of a captured graph by name, `<scope>.<operator>.<ordinal>.<argument>`, and
what a key of `update` means. Values are read and written natively.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch

from bringup.errors import CaptureError, UpdateError
from bringup.graphs._dispatch_records import DispatchRecord, HandledRecord
from bringup.graphs._handlers import (
    GraphOpHandler,
    Spec,
    gives_all_arguments,
    handler_for,
    variable_length,
)

HostValue: TypeAlias = (
    int
    | float
    | complex
    | bool
    | str
    | torch.dtype
    | list[int]
    | list[float]
    | list[bool]
    | torch.Tensor
    | list[torch.Tensor]
    | None
)


@dataclass(frozen=True)
class Slot:
    """An argument of a captured call, as the next replay will see it.

    Attributes:
        name: `<scope>.<operator>.<ordinal>.<argument>`.
        type: the schema's, `"int"`, `"float?"` (None is a value too), `"bool[]"`, `"str"`,
            `"number"` (int, float, complex or bool), `"dtype"`, `"Tensor"`, `"Tensor?"` or
            `"Tensor[]"`.
        value: the value now; of a tensor, its memory without autograd history.
        op: the operator, `"mylib::attention"`.
        piece: the number of the piece of the graph that it is in, or ends; see
            `CapturedGraph.pieces`.
    """

    name: str
    type: str
    value: HostValue
    op: str
    piece: int = 0


@dataclass(frozen=True)
class NodeInfo:
    """One node of a captured graph, in replay order.

    Attributes:
        kind: `"kernel"` (a C call), `"operator"`, `"eager"` (a call of an operator of `split_at`),
            `"constant"` (data that came from Python) or `"control"` (of `torch.cond` and
            `torch.while_loop`).
        op: the operator with its namespace and overload, `"aten::add.Tensor"`.
        scope: module path or `graphs.scope` in which it was captured, or "".
        method: how its results stay at their addresses: `"launch block"`, `"out"`, `"allocations"`,
            `"copy"`; `"device copy"` is one that the driver makes, `"stream capture"` a call of
            another library, whose work the driver captured.
        line: where it was called, `"model.py:12 in forward"`: the innermost code outside of torch
            and this package, or "".
        level: which level of `CapturedGraph(optimize=...)` runs it: 0, 1 or 2.
        reason: why no higher level does; "" at the highest.
        target: of a node of control flow, the number of the node with which a replay goes on where
            its predicate is false, or always where it reads none.
        piece: the number of the piece that it is in; of an eager call, that it ends.
    """

    kind: str
    op: str
    scope: str
    method: str
    line: str
    level: int
    reason: str
    target: int | None = None
    piece: int = 0


class NodeLevel(NamedTuple):
    """At which level of `CapturedGraph(optimize=...)` a node runs.

    Attributes:
        node: its number.
        op: its operator, `"aten::add.Tensor"`.
        level: 0, 1 or 2.
        reason: why no higher level runs it; "" at the highest.
        piece: the number of the piece that it is in, or ends.

    Examples:
        >>> from bringup import graphs
        >>> graph, x = graphs.CapturedGraph(), torch.ones(2)
        >>> with graphs.capture(graph):
        ...     y = x.cumprod(0)
        >>> graph.levels()[0].reason
        'the operator has no prepared form'
    """

    node: int
    op: str
    level: int
    reason: str
    piece: int = 0


class UpdateReport(NamedTuple):
    """What an update did.

    Attributes:
        changed: the names of the slots that changed.
        unchanged: the names of those that had the value already.
        microseconds: how long checking and staging the changes took; 0 where nothing changed: then
            nothing is measured.
    """

    changed: tuple[str, ...]
    unchanged: tuple[str, ...]
    microseconds: float


@dataclass(frozen=True)
class UpdatableCall:
    """A node whose host arguments can be updated."""

    node: int  # its number in the graph
    op: str  # as in `NodeInfo`
    scope: str  # as in `NodeInfo`
    # (index, argument, type, value) of its host arguments.
    values: Sequence[tuple[int, str, str, HostValue]]
    all_arguments: bool  # whether each of them is a slot, or only what a handler declares
    any_length: bool = False  # whether lists may get another length than they had
    # What a handler that took part recorded of the call.
    handled: tuple[DispatchRecord, type[GraphOpHandler]] | None = None
    # Gives the host arguments by name, with the values that the next replay will see.
    now: Callable[[], Mapping[str, HostValue]] = dict


@dataclass(frozen=True)
class SlotPlace:
    """Where a slot's value lies: a node's number and the index of its schema argument."""

    name: str
    node: int
    argument: int
    op: str
    variable_length: bool


@dataclass(frozen=True)
class Record:
    """An updatable call for the list form of `update`: its operator and its slots by key."""

    op: str
    slots: dict[str, int]


def name_slots(
    calls: Sequence[UpdatableCall],
) -> tuple[list[SlotPlace], list[Record | HandledRecord]]:
    """Return a graph's slots and records, in order. Raises `CaptureError` for a wrong handler."""
    places: list[SlotPlace] = []
    records: list[Record | HandledRecord] = []
    ordinals: dict[tuple[str, str], int] = {}
    for call in calls:
        bare = call.op.partition("::")[2].partition(".")[0] or call.op.rpartition(".")[2]
        ordinal = ordinals.get((call.scope, bare), 0)
        ordinals[call.scope, bare] = ordinal + 1
        prefix = ".".join(part for part in (call.scope, bare, str(ordinal)) if part)
        found = handler_for(call.op)
        keys = _declared(call, *found) if found else {}
        keyword_only = keyword_only_of(call.op) if found else frozenset()
        free = variable_length(found[0]) if found else frozenset()
        # torch_npu's handlers, which know no VARIABLE_LENGTH, give lists of any length
        unbound = not free and call.op.startswith(("npu::", "atb::"))
        every = call.all_arguments or (found is None and gives_all_arguments(call.op))
        every = every or call.handled is not None
        record: dict[str, int] = {}
        named: dict[str, int] = {}
        for index, argument, _, _ in call.values:
            is_key = index in keys or argument in keyword_only
            if not every and not is_key:
                continue
            key = keys.get(index, argument)
            named[argument] = len(places)
            if is_key:
                record[key] = len(places)
            if argument in keyword_only:
                record[argument] = len(places)
            any_length = unbound or call.any_length or key in free
            places.append(SlotPlace(f"{prefix}.{key}", call.node, index, call.op, any_length))
        if call.handled is not None:
            records.append(HandledRecord(*call.handled, named, call.now))
        elif record:
            records.append(Record(call.op, record))
    return places, records


def keyword_only_of(op: str) -> frozenset[str]:
    """Return the keyword-only arguments of an operator: an update may name them without a spec."""
    return frozenset(one.name for one in _schema_of(op).arguments if one.kwarg_only)


def _is_tensor(op: str, place: int | str) -> bool:
    arguments = _schema_of(op).arguments
    return any(
        str(argument.type) in ("Tensor", "Optional[Tensor]", "List[Tensor]")
        and argument.alias_info is None
        for index, argument in enumerate(arguments)
        if place in (index, argument.name)
    )


def _schema_of(op: str) -> Any:
    base, _, overload = op.partition(".")
    return torch._C._get_schema(base, overload)


def _declared(
    call: UpdatableCall, handler: type[GraphOpHandler], specs: Sequence[Spec]
) -> dict[int, str]:
    """Return which argument index has which key, by the handler."""
    keys: dict[int, str] = {}
    for kind, place, key in specs:
        matching = [i for i, name, _, _ in call.values if place == (i if kind == "arg" else name)]
        if not matching and _is_tensor(call.op, place):
            continue  # of other calls it may be a slot: this one's is the graph's own
        if not matching:
            known = ", ".join(f"{i} '{name}' {kind_}" for i, name, kind_, _ in call.values)
            raise CaptureError(
                f"{handler.__name__} declares {kind} {place!r} of {call.op} as '{key}', which is no"
                " value that update writes; such arguments are:"
                f" {known or 'none'}"
            )
        keys[matching[0]] = key
    return keys


def check_become_nodes(ops: Iterable[str]) -> None:
    """Raise `CaptureError` where one of `ops`, which became no node, has a handler with specs. One
    with `should_handle` was asked, and left the call as it is.
    """
    for op in ops:
        found = handler_for(op)
        if found is not None and found[1] and not hasattr(found[0], "should_handle"):
            keys = ", ".join(f"'{key}'" for _, _, key in found[1])
            raise CaptureError(
                f"{found[0].__name__} declares {keys} of {op}, which has no slots: it gives a view"
                " or is made of other operators, and a replay does not call it. Register a handler"
                " for what it calls, or give its numbers as tensors"
            )


def resolve(key: str, names: Sequence[str]) -> list[int]:
    """Return the slots that `key` means: `*` is one segment, `**` any number, the ordinal may be
    left out. Raises `UpdateError` for no slot, or several without a wildcard.
    """
    if not isinstance(key, str):
        raise UpdateError(f"a slot's name is a str, got {key!r}. Nothing was changed")
    pattern = tuple(key.split("."))
    found = [
        number
        for number, name in enumerate(names)
        if any(_matches(pattern, segments) for segments in _spellings(name))
    ]
    if not found:
        raise UpdateError(f"no slot '{key}'. {_nearest(key, names)}. Nothing was changed")
    if len(found) > 1 and "*" not in pattern and "**" not in pattern:
        listed = ", ".join(names[number] for number in found)
        raise UpdateError(
            f"slot '{key}' means several: {listed}. Name one, or use a wildcard."
            " Nothing was changed"
        )
    return found


def _spellings(name: str) -> Iterable[tuple[str, ...]]:
    segments = tuple(name.split("."))
    return segments, (*segments[:-2], segments[-1])


def _matches(pattern: tuple[str, ...], segments: tuple[str, ...]) -> bool:
    if not pattern:
        return not segments
    head, rest = pattern[0], pattern[1:]
    if head == "**":
        return any(_matches(rest, segments[skipped:]) for skipped in range(len(segments) + 1))
    return bool(segments) and head in ("*", segments[0]) and _matches(rest, segments[1:])


def _nearest(key: str, names: Sequence[str]) -> str:
    if not names:
        return (
            "The graph has no slots: no kernel with host arguments and no operator with a handler"
            " was captured"
        )
    same_argument = [name for name in names if name.rpartition(".")[2] == key.rpartition(".")[2]]
    near = same_argument or difflib.get_close_matches(key, names, n=3, cutoff=0.4) or list(names)
    listed = ", ".join(near[:3]) + (", ..." if len(near) > 3 else "")
    return f"Nearest: {listed}"
