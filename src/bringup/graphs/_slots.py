"""Slots: the host arguments of a captured graph by name, and what a key of `update` means.

A slot's name is `<scope>.<operator>.<ordinal>.<argument>`. Names are made here, values are read and
written natively.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bringup.errors import CaptureError, UpdateError
from bringup.graphs._handlers import handler_for

__all__ = ["HostValue", "NodeInfo", "Record", "SlotPlace", "name_slots", "resolve"]

HostValue = int | float | bool | list[int] | list[float]


@dataclass(frozen=True)
class NodeInfo:
    """One node of a captured graph, in replay order.

    Attributes:
        kind: `"kernel"` (a C call), `"operator"` or `"constant"` (data that came from Python).
        op: the operator with its namespace and overload, `"aten::add.Tensor"`.
        scope: module path or `graphs.scope` in which it was captured, or "".
        method: how its results stay at their addresses: `"launch block"`, `"out"`, `"allocations"`,
            `"copy"`.
    """

    kind: str
    op: str
    scope: str
    method: str


@dataclass(frozen=True)
class SlotPlace:
    """Where a slot's value lies: a node's number and the index of its schema argument."""

    name: str
    node: int
    argument: int
    variable_length: bool


@dataclass(frozen=True)
class Record:
    """An updatable call for the list form of `update`: its operator and its slots by key."""

    op: str
    slots: dict[str, int]


def name_slots(
    nodes: Sequence[NodeInfo], host_values: Sequence[Sequence[tuple[int, str, str, HostValue]]]
) -> tuple[list[SlotPlace], list[Record]]:
    """All slots of a graph and its records, in capture order.

    Args:
        nodes: the graph's nodes.
        host_values: for each node (index, argument, type, value) of its host arguments.

    Raises:
        CaptureError: a handler declares an argument that the operator does not have, or that is no
            host value.
    """
    places: list[SlotPlace] = []
    records: list[Record] = []
    ordinals: dict[tuple[str, str], int] = {}
    for number, (node, values) in enumerate(zip(nodes, host_values, strict=True)):
        bare = node.op.partition("::")[2].partition(".")[0]
        ordinal = ordinals.get((node.scope, bare), 0)
        ordinals[node.scope, bare] = ordinal + 1
        prefix = ".".join(part for part in (node.scope, bare, str(ordinal)) if part)
        found = handler_for(node.op)
        keys = _declared(node.op, values) if found else {}
        mine: dict[str, int] = {}
        for index, argument, _, _ in values:
            if node.kind != "kernel" and index not in keys:
                continue
            key = keys.get(index, argument)
            free = found is not None and key in found[0].VARIABLE_LENGTH
            if index in keys:
                mine[key] = len(places)
            places.append(SlotPlace(f"{prefix}.{key}", number, index, free))
        if mine:
            records.append(Record(node.op, mine))
    return places, records


def _declared(op: str, values: Sequence[tuple[int, str, str, HostValue]]) -> dict[int, str]:
    """Which argument index has which key, by the handler of `op`."""
    found = handler_for(op)
    keys: dict[int, str] = {}
    for kind, place, key in found[1] if found else ():
        index = next(
            (i for i, argument, _, _ in values if place == (i if kind == "arg" else argument)), None
        )
        if index is None:
            known = (
                ", ".join(f"{i} '{argument}' {type_}" for i, argument, type_, _ in values) or "none"
            )
            raise CaptureError(
                f"{found[0].__name__ if found else ''} declares {kind} {place!r} of {op} as"
                f" '{key}', which is no"
                f" int, float, bool, int[] or float[] argument there; such arguments are: {known}"
            )
        keys[index] = key
    return keys


def resolve(key: str, names: Sequence[str]) -> list[int]:
    """Which slots `key` means.

    `*` stands for one segment, `**` for any number. The ordinal may be left out.

    Raises:
        UpdateError: no slot, or several without a wildcard.
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
