"""Captured graphs for people: as a DOT text or a trace, and what distinguishes two of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from bringup.graphs._pieces import pieces_of
from bringup.graphs._slots import HostValue, NodeInfo, Slot

if TYPE_CHECKING:
    from bringup.report import Table

_SHOWN_NODES = 100


@dataclass(frozen=True)
class Access:
    """A tensor that a node reads or writes."""

    memory: int  # the same number for the same storage, counted in order of appearance
    writes: bool  # whether the node writes it
    predates: bool  # whether the memory was there before the capture
    what: str  # dtype and shape, `"float32[2, 3]"`


@dataclass(frozen=True)
class Change:
    """What one name stands for on both sides, in words.

    Attributes:
        name: of a node or a slot.
        before: what it stands for in this graph.
        after: what it stands for in the other one.

    Examples:
        >>> from bringup import graphs
        >>> first, second, x = graphs.CapturedGraph(), graphs.CapturedGraph(), torch.ones(2)
        >>> with graphs.capture(first):
        ...     y = torch.relu(x)
        >>> with graphs.capture(second):
        ...     y = torch.relu(x[:1])
        >>> change: graphs.Change
        >>> (change,) = first.diff(second).nodes_changed
        >>> change.name
        'aten::relu.0'
    """

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class GraphDiff:
    """What distinguishes a graph from another one; false when nothing does.

    Nodes are named `<scope>.<operator>.<ordinal>`, where the ordinal counts calls of the operator
    within the scope; slots have the names that `update` takes. Values of slots are compared as they
    are now.

    Attributes:
        nodes_added: nodes that only the other graph has.
        nodes_removed: nodes that only this graph has.
        nodes_changed: nodes of both that are done otherwise or on tensors of another form.
        slots_added: slots that only the other graph has.
        slots_removed: slots that only this graph has.
        slots_changed: slots of both with another type or value.
        reordered: whether the nodes of both run in another order.
    """

    nodes_added: tuple[str, ...] = ()
    nodes_removed: tuple[str, ...] = ()
    nodes_changed: tuple[Change, ...] = ()
    slots_added: tuple[str, ...] = ()
    slots_removed: tuple[str, ...] = ()
    slots_changed: tuple[Change, ...] = ()
    reordered: bool = False

    def __bool__(self) -> bool:
        return self != GraphDiff()

    def __str__(self) -> str:
        if not self:
            return "no difference"
        lines = [
            *_section("nodes", self.nodes_added, self.nodes_removed, self.nodes_changed),
            *(["nodes of both run in another order"] if self.reordered else []),
            *_section("slots", self.slots_added, self.slots_removed, self.slots_changed),
        ]
        return "\n".join(lines)


def _section(
    what: str, added: Sequence[str], removed: Sequence[str], changed: Sequence[Change]
) -> list[str]:
    if not (added or removed or changed):
        return []
    return [
        f"{what}: {len(added)} added, {len(removed)} removed, {len(changed)} changed",
        *(f"  + {name}" for name in added),
        *(f"  - {name}" for name in removed),
        *(f"  ~ {change.name}: {change.before} -> {change.after}" for change in changed),
    ]


@dataclass(frozen=True)
class GraphMemory:
    """The memory that a captured graph holds, in bytes.

    Attributes:
        results: of tensors made in the capture that were still there at its end.
        intermediates: of all others, which share it in turn.
        constants: data of Python, which each replay puts back.
        inputs: what was there before the capture and is read or written; the graph keeps it alive.
        shared: of results and intermediates, what other graphs of its pool use too.
    """

    results: int
    intermediates: int
    constants: int
    inputs: int
    shared: int


def shown(value: HostValue) -> object:
    """Return a slot's value as JSON has it."""
    plain = not isinstance(value, (torch.Tensor, torch.dtype, complex))
    return value if plain else value_words(value)


def chrome_trace(
    nodes: Sequence[NodeInfo],
    times: Sequence[tuple[int, int, int]],
    slots: Mapping[int, Mapping[str, Slot]],
) -> str:
    """Return the run of a graph in Chrome's trace format; `times` are rows (node, begin, end) in
    nanoseconds.
    """
    events = [_event(scope, "scope", begin, end, {}) for scope, begin, end in _scopes(nodes, times)]
    for number, begin, end in times:
        node = nodes[number]
        values = {name: shown(slot.value) for name, slot in slots.get(number, {}).items()}
        where = {"node": number, "piece": node.piece, "scope": node.scope, "line": node.line}
        told = {**where, "method": node.method}
        events.append(_event(node.op, node.kind, begin, end, {**told, **values}))
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, indent=1) + "\n"


def _event(name: str, kind: str, begin: int, end: int, args: Mapping[str, object]) -> object:
    where = {"ph": "X", "pid": 0, "tid": 0, "ts": begin / 1000, "dur": (end - begin) / 1000}
    return {"name": name, "cat": kind, **where, "args": args}


def _scopes(
    nodes: Sequence[NodeInfo], times: Sequence[tuple[int, int, int]]
) -> Iterator[tuple[str, int, int]]:
    """Yield (scope, begin, end) of each stretch of nodes in one scope, outer ones first."""
    open_: list[tuple[str, int]] = []
    ended: list[tuple[str, int, int]] = []
    last = 0
    for number, begin, end in times:
        scope = nodes[number].scope
        path = scope.split(".") if scope else []
        names = [".".join(path[: depth + 1]) for depth in range(len(path))]
        common = sum(1 for (name, _), now in zip(open_, names, strict=False) if name == now)
        ended += [(name, since, last) for name, since in open_[common:]]
        open_[common:] = [(name, begin) for name in names[common:]]
        last = end
    ended += [(name, since, last) for name, since in open_]
    yield from sorted(ended, key=lambda scope: (scope[1], -scope[2]))


def value_words(value: HostValue) -> str:
    """Return a slot's value as text; of a tensor its dtype and shape."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return str(value)


def named_nodes(nodes: Iterable[NodeInfo], accesses: Iterable[Sequence[Access]]) -> dict[str, str]:
    """Return what each node does, in words, by the node's name and in replay order."""
    ordinals: dict[tuple[str, str], int] = {}
    named: dict[str, str] = {}
    for node, touched in zip(nodes, accesses, strict=True):
        ordinal = ordinals.get((node.scope, node.op), 0)
        ordinals[node.scope, node.op] = ordinal + 1
        name = ".".join(part for part in (node.scope, node.op, str(ordinal)) if part)
        read = ", ".join(access.what for access in touched if not access.writes)
        written = ", ".join(access.what for access in touched if access.writes)
        named[name] = f"{node.kind} by {node.method} ({read}) -> ({written})"
    return named


def diff_graphs(
    nodes: Mapping[str, str],
    other_nodes: Mapping[str, str],
    slots: Mapping[str, str],
    other_slots: Mapping[str, str],
) -> GraphDiff:
    """Compare nodes and slots, each as words by name."""
    common = [name for name in nodes if name in other_nodes]
    return GraphDiff(
        *_compared(nodes, other_nodes),
        *_compared(slots, other_slots),
        reordered=common != [name for name in other_nodes if name in nodes],
    )


def _compared(
    ours: Mapping[str, str], theirs: Mapping[str, str]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[Change, ...]]:
    return (
        tuple(name for name in theirs if name not in ours),
        tuple(name for name in ours if name not in theirs),
        tuple(
            Change(name, words, theirs[name])
            for name, words in ours.items()
            if name in theirs and theirs[name] != words
        ),
    )


def dot_text(
    nodes: Sequence[NodeInfo],
    accesses: Sequence[Sequence[Access]],
    slots: Mapping[int, Mapping[str, Slot]],
) -> str:
    """Return the graph in the DOT language; `slots` by node number and the slot's name."""
    lines = ["digraph captured {", "  node [shape=box];"]
    boxes = []
    for number, node in enumerate(nodes):
        values = _slot_words(slots.get(number, {}))
        label = _escaped([f"{number}: {node.op}", *filter(None, [node.scope]), *values])
        boxes.append(f'  n{number} [label="{label}", tooltip="{_how(node)}"];')
    pieces = pieces_of([node.kind for node in nodes], [node.op for node in nodes])
    for number, piece in enumerate(pieces):
        inside = boxes[piece.nodes.start : piece.nodes.stop]
        lines += _framed(f"piece {number}", inside) if len(pieces) > 1 else inside
        lines += boxes[piece.nodes.stop : piece.nodes.stop + 1]
    lines += _memory_lines(accesses)
    lines += _edge_lines(nodes, accesses)
    return "\n".join([*lines, "}"]) + "\n"


def _framed(name: str, boxes: Sequence[str]) -> list[str]:
    if not boxes:
        return []
    frame = name.replace(" ", "_")
    return [f'  subgraph cluster_{frame} {{ label="{name}";', *(f"  {box}" for box in boxes), "  }"]


def _how(node: NodeInfo) -> str:
    level = f", level {node.level}" if node.level else ""
    return f"{node.kind} by {node.method}{level}"


def _slot_words(slots: Mapping[str, Slot]) -> list[str]:
    return [f"{name} = {value_words(slot.value)}" for name, slot in slots.items()]


def node_table(
    title: str, nodes: Sequence[NodeInfo], slots: Mapping[int, Mapping[str, Slot]]
) -> Table:
    """Return the first nodes as a table; see `dot_text`."""
    from bringup.report import Table
    from bringup.report._columns import numbers, texts

    table = Table(title, [*numbers("node"), *texts("operator", "scope", "slots")])
    for number, node in enumerate(nodes[:_SHOWN_NODES]):
        words = "\n".join(_slot_words(slots.get(number, {})))
        table.add(str(number), node.op, node.scope, words)
    if left := len(nodes) - len(table.rows):
        table.notes.append(f"{left} more nodes: debug_dump() writes all")
    return table


def _memory_lines(accesses: Sequence[Sequence[Access]]) -> list[str]:
    """Return a line for each memory from before the capture, labelled by its first use."""
    labels: dict[int, str] = {}
    for touched in accesses:
        for access in touched:
            if access.predates:
                labels.setdefault(access.memory, access.what)
    return [
        f'  m{memory} [shape=ellipse, label="{_escaped([what])}"];'
        for memory, what in labels.items()
    ]


_Filled = dict[int, tuple[str, ...]]
"""Of each memory, by which nodes it may have been filled last."""


def _edge_lines(nodes: Sequence[NodeInfo], accesses: Sequence[Sequence[Access]]) -> list[str]:
    """Return edges from the last writers of a memory to its readers, and where control flow leads,
    as long as trips of loops find further ones.
    """
    lines: dict[str, None] = {}
    led: dict[int, _Filled] = {}
    known = -1
    while known != len(lines):
        known = len(lines)
        filled: _Filled = {}
        for number, (node, touched) in enumerate(zip(nodes, accesses, strict=True)):
            filled = _merged(filled, led.get(number))
            _add_edges(lines, filled, number, touched)
            if node.target is not None:
                label = "false" if touched else ""
                if node.target < len(nodes):
                    line = f'  n{number} -> n{node.target} [style=dotted, label="{label}"];'
                    lines[line] = None
                led[node.target] = _merged(filled, led.get(node.target))
                filled = dict(filled) if touched else {}
        if not led:
            break
    return list(lines)


def _merged(filled: _Filled, other: _Filled | None) -> _Filled:
    if other is None:
        return filled
    both = {memory: (*filled.get(memory, ()), *other.get(memory, ())) for memory in filled | other}
    return {memory: tuple(dict.fromkeys(writers)) for memory, writers in both.items()}


def _add_edges(
    lines: dict[str, None], filled: _Filled, number: int, touched: Sequence[Access]
) -> None:
    for access in touched:
        sources = filled.get(access.memory, (f"m{access.memory}",) if access.predates else ())
        if not access.writes:
            label = _escaped([access.what])
            for source in sources:
                lines[f'  {source} -> n{number} [label="{label}"];'] = None
    for access in touched:
        if not access.writes:
            continue
        filled[access.memory] = (f"n{number}",)
        if access.predates:
            lines[f"  n{number} -> m{access.memory} [style=dashed];"] = None


def _escaped(lines: Sequence[str]) -> str:
    return "\\n".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
