"""What repeats in a graph: parts that occur often enough to be worth an operator of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from bringup import ir
from bringup.passes.mining.growth import Growth, Kind, Links
from bringup.passes.mining.mined_pattern import MinedPattern
from bringup.passes.report import NearMiss


@dataclass(frozen=True)
class Repeat:
    """One part that repeats.

    Attributes:
        op_types: its operators, in graph order.
        count: how often it occurs without overlap.
        saved: how many nodes are fewer if one operator takes the place of each.
        example: the names of the nodes where it occurs first.
        stack_trace: the user's lines there; "" where the graph does not know them.
        inputs, outputs: how many values it reads and returns.
        pattern: a `@passes.pattern` method that finds it.
        near_miss: the place that comes closest and differs; None when there is none.
        places: the names of the nodes of every occurrence that was counted.
    """

    op_types: tuple[str, ...]
    count: int
    saved: int
    example: tuple[str, ...]
    stack_trace: str
    inputs: int
    outputs: int
    pattern: str
    near_miss: NearMiss | None
    places: tuple[tuple[str, ...], ...] = field(repr=False)

    def __str__(self) -> str:
        lines = [
            f"{self.count} x {len(self.op_types)} nodes ({self.saved} fewer if fused): "
            f"{' '.join(self.op_types)}",
            f"  first: {', '.join(self.example)}",
        ]
        if self.stack_trace:
            lines += [f"  {line}" for line in self.stack_trace.strip().splitlines()[-2:]]
        if self.near_miss is not None:
            lines.append(f"  nearest miss: {self.near_miss}")
        return "\n".join([*lines, *(f"    {line}" for line in self.pattern.splitlines())])


@dataclass(frozen=True)
class Mined:
    """What `mine` found in one graph.

    Attributes:
        graph: its name.
        nodes: how many operators were looked at: those that a pass may replace.
        repeats: what saves most first.
        is_complete: whether every part that repeats was considered. Of more than a thousand
            operators some stretches are searched, and of all kinds those that promise most
            followed; counts are of the whole graph nevertheless.
    """

    graph: str
    nodes: int
    repeats: tuple[Repeat, ...]
    is_complete: bool

    def __str__(self) -> str:
        head = f"{self.graph}: {self.nodes} operators that passes may replace"
        if not self.repeats:
            return f"{head}; nothing repeats"
        return "\n".join([head, *(str(repeat) for repeat in self.repeats)])

    def as_dict(self) -> dict[str, object]:
        """Return the fields as plain values, of each repeat three places at most."""
        return {
            "graph": self.graph,
            "nodes": self.nodes,
            "is_complete": self.is_complete,
            "repeats": [_fields(repeat) for repeat in self.repeats],
        }


def mine(
    graph: ir.Graph,
    *,
    min_count: int = 2,
    max_nodes: int = 8,
    max_outputs: int = 1,
    most: int | None = 10,
    effort: int = 48,
    overlapping: bool = False,
) -> Mined:
    """Return connected parts of a graph that repeat, by operator types and structure.

    A part is found where a pattern of it matches: passes may replace it, what is read of it outside
    are its outputs, and arguments that are no values may differ. Subgraphs are not looked into.

    Args:
        graph: is not changed.
        min_count: how often a part must occur, without overlap; from 2.
        max_nodes: the largest part, from 2 to 16 nodes.
        max_outputs: how many values may be read of it outside.
        most: how many parts are given; None for all.
        effort: how many kinds of parts are followed at every size; time grows with it.
        overlapping: whether parts are given too whose nodes belong to parts that save more.

    Raises `ValueError` for a number that is out of bounds, `TypeError` for anything but a graph.
    """
    if not isinstance(graph, ir.Graph):
        raise TypeError(f"mine takes an ir.Graph, got {type(graph).__name__}")
    bounds = {"min_count": (2, None), "max_nodes": (2, 16), "max_outputs": (1, None)}
    given = {"min_count": min_count, "max_nodes": max_nodes, "max_outputs": max_outputs}
    for name, (least, greatest) in {**bounds, "effort": (1, None), "most": (1, None)}.items():
        _check_number(name, {**given, "effort": effort, "most": most}[name], least, greatest)
    links = Links(graph)
    growth = Growth(links, min_count=min_count, effort=effort)
    found = _Found(graph, min_count, most, overlapping)
    kinds = [kind for level in growth.kinds(max_nodes) for kind in level]
    candidates = [item for kind in kinds for item in _interfaces(links, kind, max_outputs)]
    candidates.sort(key=lambda item: item[0])
    for _, candidate in candidates:
        if found.is_full:
            break
        found.consider(candidate)
    return Mined(graph.name, len(links.nodes), found.repeats(), growth.is_complete)


def _interfaces(
    links: Links, kind: Kind, max_outputs: int
) -> Iterator[tuple[tuple[int, ...], MinedPattern]]:
    """Return a pattern, and its worth, for each way in which parts are tied to the rest."""
    seen: dict[object, list[MinedPattern]] = {}
    for place in kind.places:
        if len(links.outputs_of(place)) > max_outputs:
            continue
        nodes = sorted((links.nodes[number] for number in place), key=lambda node: node.order)
        if not all(node.users for node in nodes):
            continue  # a node that is not read is no part of a pattern
        mined = MinedPattern(nodes)
        if mined.inputs and 0 < len(mined.outputs) <= max_outputs:
            seen.setdefault(mined.interface(), []).append(mined)
    for same in seen.values():
        first = same[0]
        saved = len(same) * (kind.size - 1)
        yield ((-saved, len(first.outputs), len(first.inputs), first.example[0].order), first)


class _Found:
    """The parts that are given."""

    def __init__(
        self, graph: ir.Graph, min_count: int, most: int | None, overlapping: bool
    ) -> None:
        self._graph = graph
        self._min_count = min_count
        self._most = most
        self._overlapping = overlapping
        self._covered: set[ir.Node] = set()
        self._seen: set[frozenset[frozenset[ir.Node]]] = set()
        self._chosen: list[tuple[MinedPattern, list[tuple[ir.Node, ...]]]] = []

    @property
    def is_full(self) -> bool:
        return self._most is not None and len(self._chosen) >= self._most

    def consider(self, mined: MinedPattern) -> None:
        """Look a candidate up in the graph, and keep it if it occurs often enough."""
        if not self._overlapping and not self._covered.isdisjoint(mined.example):
            return
        mined.search(self._graph)
        places = [tuple(place.values()) for place in mined.places]
        if not self._overlapping:
            places = [place for place in places if self._covered.isdisjoint(place)]
        counted = _apart(places)
        identity = frozenset(frozenset(place) for place in places)
        if len(counted) < self._min_count or identity in self._seen:
            return
        self._seen.add(identity)
        self._chosen.append((mined, counted))
        self._covered.update(node for place in counted for node in place)

    def repeats(self) -> tuple[Repeat, ...]:
        chosen = sorted(self._chosen, key=lambda item: -len(item[1]) * (len(item[0].example) - 1))
        return tuple(
            _repeat(mined, places, number) for number, (mined, places) in enumerate(chosen, start=1)
        )


def _apart(places: list[tuple[ir.Node, ...]]) -> list[tuple[ir.Node, ...]]:
    """Those that can be taken without overlap: the one that ends first, first."""
    ordered = [tuple(sorted(place, key=lambda node: node.order)) for place in places]
    ordered.sort(key=lambda place: [node.order for node in reversed(place)])
    taken: set[ir.Node] = set()
    chosen = []
    for place in ordered:
        if taken.isdisjoint(place):
            taken.update(place)
            chosen.append(place)
    return chosen


def _repeat(mined: MinedPattern, places: list[tuple[ir.Node, ...]], number: int) -> Repeat:
    first, name = places[0], f"repeat_{number}"
    miss = mined.near_miss
    return Repeat(
        op_types=tuple(node.op_type for node in first),
        count=len(places),
        saved=len(places) * (len(first) - 1),
        example=tuple(node.name for node in first),
        stack_trace=str(first[-1].meta.get("stack_trace", "")),
        inputs=len(mined.inputs),
        outputs=len(mined.outputs),
        pattern=mined.text(name),
        near_miss=None if miss is None else replace(miss, pattern=name),
        places=tuple(tuple(node.name for node in place) for place in places),
    )


def _fields(repeat: Repeat) -> dict[str, object]:
    miss = repeat.near_miss
    return {
        **vars(repeat),
        "near_miss": None if miss is None else dict(vars(miss)),
        "places": repeat.places[:3],
    }


def _check_number(name: str, given: object, least: int, greatest: int | None) -> None:
    if given is None and name == "most":
        return
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"{name} must be a number, got {given!r}")
    if given < least or (greatest is not None and given > greatest):
        bound = f"from {least}" if greatest is None else f"from {least} to {greatest}"
        raise ValueError(f"{name} must be {bound}, got {given}")
