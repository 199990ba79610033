"""Growing connected parts of a graph, node by node, and telling which of them look alike.

Parts look alike when they have operators of the same types that read each other in the same way.
What they read from outside and their numbers are not looked at here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from bringup import ir
from bringup.ir.node import values_in

Place: TypeAlias = tuple[int, ...]
"""Numbers of member nodes, in the order of the kind."""
_Edge: TypeAlias = tuple[int, int, int, int]
"""Producer, output, argument, consumer: the first and last as positions in a place."""
_Form: TypeAlias = object

_WINDOWS = 4  # stretches of a large graph in which parts are grown
_WINDOW = 256  # nodes in each
_READERS = 48  # readers of a node that are looked at
_ORDERS = 720  # orders of equal nodes that are tried for a canonical one


@dataclass(frozen=True)
class Kind:
    """Parts that look alike, which share `code`, and where they are."""

    code: object
    places: tuple[Place, ...]

    @property
    def size(self) -> int:
        """Return how many nodes such a part has."""
        return len(self.places[0])

    def saved(self) -> int:
        """Count the nodes that go if one takes the place of each part."""
        return apart(self.places) * (self.size - 1)


class Links:
    """The operators of a graph that a pass may replace; of a large graph, in some stretches."""

    def __init__(self, graph: ir.Graph) -> None:
        self.nodes = [node for node in graph.nodes if _may_be_replaced(node)]
        self.is_cut = len(self.nodes) > _WINDOWS * _WINDOW
        self.grown = _stretches(len(self.nodes)) if self.is_cut else range(len(self.nodes))
        self.is_grown = frozenset(self.grown)
        numbers = {node: number for number, node in enumerate(self.nodes)}
        self.labels: list[object] = []
        self.inward: list[list[tuple[int, int, int]]] = []
        self.outward: list[list[tuple[int, int, int]]] = [[] for _ in self.nodes]
        self.escapes = [False] * len(self.nodes)
        for number, node in enumerate(self.nodes):
            self.labels.append((node.op_type, len(node.outputs), _argument_form(node)))
            reads = []
            for position, value in _numbered_values(node):
                producer = numbers.get(value.node)
                if producer is not None:
                    reads.append((producer, value.index, position))
                    self.outward[producer].append((number, value.index, position))
            self.inward.append(reads)
            self.escapes[number] = any(user not in numbers for user in node.users)

    def around(self, number: int) -> Iterator[int]:
        """Return the members that a member reads or that read it."""
        for producer, _, _ in self.inward[number]:
            yield producer
        readers = self.outward[number]
        if len(readers) > _READERS:
            self.is_cut = True
        for consumer, _, _ in readers[:_READERS]:
            yield consumer

    def outputs_of(self, place: Sequence[int]) -> list[int]:
        """Return the positions of the nodes that are read outside of a place."""
        inside = set(place)
        return [
            position
            for position, number in enumerate(place)
            if self.escapes[number]
            or any(consumer not in inside for consumer, _, _ in self.outward[number])
        ]


class Growth:
    """Kinds of parts, found size by size: each with one node more than one of the size before.

    A kind with fewer than `min_count` places, without overlap, is not followed; of others, at every
    size, the `effort` kinds that save most. Attribute `is_complete` tells that none was left out.
    """

    def __init__(self, links: Links, *, min_count: int, effort: int) -> None:
        self._links = links
        self._min_count = min_count
        self._effort = effort
        self.is_complete = True

    def kinds(self, max_nodes: int) -> Iterator[list[Kind]]:
        """Return the kinds of parts with two nodes, three, ..., up to `max_nodes`."""
        current = self._single_nodes()
        for _ in range(1, max_nodes):
            current = self._larger(current)
            if not current:
                return
            yield current

    def _single_nodes(self) -> list[Kind]:
        found: dict[object, list[Place]] = {}
        for number in self._links.grown:
            found.setdefault(self._links.labels[number], []).append((number,))
        return [
            Kind(code, tuple(places))
            for code, places in found.items()
            if len(places) >= self._min_count
        ]

    def _larger(self, kinds: list[Kind]) -> list[Kind]:
        found: dict[object, dict[frozenset[int], Place]] = {}
        for kind in kinds:
            for places in self._extensions(kind).values():
                ordered = self._canonical(places[0])
                if ordered is None:
                    self.is_complete = False
                    continue
                code, order = ordered
                known = found.setdefault(code, {})
                for place in places:
                    known.setdefault(frozenset(place), tuple(place[index] for index in order))
        larger = []
        for code, alike in found.items():
            size = len(next(iter(alike)))
            if len(set().union(*alike)) >= self._min_count * size:
                larger.append(Kind(code, tuple(sorted(alike.values(), key=max))))
        outputs_of = self._links.outputs_of
        larger.sort(
            key=lambda kind: (-kind.saved(), len(outputs_of(kind.places[0])), min(kind.places[0]))
        )
        if len(larger) > self._effort or self._links.is_cut:
            self.is_complete = False
        return larger[: self._effort]

    def _extensions(self, kind: Kind) -> dict[object, list[Place]]:
        """Return places with one node more, by what that node is and how it is linked."""
        links = self._links
        found: dict[object, list[Place]] = {}
        for place in kind.places:
            positions = {number: position for position, number in enumerate(place)}
            around = dict.fromkeys(near for number in place for near in links.around(number))
            for number in around:
                if number in positions or number not in links.is_grown:
                    continue
                reads = [
                    (positions[producer], output, argument)
                    for producer, output, argument in links.inward[number]
                    if producer in positions
                ]
                read_by = [
                    (positions[consumer], output, argument)
                    for consumer, output, argument in links.outward[number]
                    if consumer in positions
                ]
                how = (links.labels[number], tuple(sorted(reads)), tuple(sorted(read_by)))
                found.setdefault(how, []).append((*place, number))
        return found

    def _canonical(self, place: Place) -> tuple[object, tuple[int, ...]] | None:
        """Return a code that like parts share, and its order; None where too many look alike."""
        positions = {number: position for position, number in enumerate(place)}
        labels = [self._links.labels[number] for number in place]
        edges = [
            (positions[producer], output, argument, position)
            for position, number in enumerate(place)
            for producer, output, argument in self._links.inward[number]
            if producer in positions
        ]
        classes = _classes(labels, edges)
        tries = math.prod(math.factorial(len(alike)) for alike in classes)
        if tries > _ORDERS:
            return None
        best: tuple[list[_Edge], tuple[int, ...]] | None = None
        for choice in itertools.product(*(itertools.permutations(alike) for alike in classes)):
            order = tuple(itertools.chain.from_iterable(choice))
            rank = {position: index for index, position in enumerate(order)}
            renamed = sorted(
                (rank[a], output, argument, rank[b]) for a, output, argument, b in edges
            )
            if best is None or renamed < best[0]:
                best = renamed, order
        assert best is not None, "there is always an order"
        return (tuple(labels[position] for position in best[1]), tuple(best[0])), best[1]


def _stretches(size: int) -> list[int]:
    """Return numbers below `size`: windows of equal length, evenly spread."""
    step = (size - _WINDOW) / (_WINDOWS - 1)
    starts = (int(index * step) for index in range(_WINDOWS))
    return [number for start in starts for number in range(start, start + _WINDOW)]


def apart(places: Sequence[Sequence[int]]) -> int:
    """Count how many of these places can be taken without overlap, first come first served."""
    taken: set[int] = set()
    count = 0
    for place in places:
        if taken.isdisjoint(place):
            taken.update(place)
            count += 1
    return count


def _commutes(node: ir.Node) -> bool:
    operator = node.operator
    if not operator.commutes or len(node.arguments) < 2:
        return False
    factor = operator.commutes_if_one
    return factor is None or node.arguments[factor] == 1


def _argument_form(node: ir.Node) -> _Form:
    """Return where values stand among the arguments of a node, and where anything else."""
    forms = [_form(argument) for argument in structure(node)]
    if _commutes(node):
        forms[:2] = sorted(forms[:2], key=repr)
    return tuple(forms), tuple((name, _form(item)) for name, item in node.keywords.items())


def _form(argument: object) -> _Form:
    if isinstance(argument, ir.Value):
        return "value"
    if isinstance(argument, tuple) and next(values_in(argument), None) is not None:
        return tuple(_form(item) for item in argument)
    return "host"


def structure(node: ir.Node) -> tuple[object, ...]:
    """Return a node's arguments, None for those that are no tensors, such as sizes."""
    parameters = node.operator.parameters
    if not parameters:
        return node.arguments
    return tuple(
        argument if "Tensor" in parameter.type else None
        for parameter, argument in zip(parameters, node.arguments, strict=True)
    )


def _numbered_values(node: ir.Node) -> Iterator[tuple[int, ir.Value]]:
    """Return what a node reads, with the argument's number; operands that may swap share one."""
    either = _commutes(node)
    for position, value in enumerate(values_in((structure(node), dict(node.keywords)))):
        yield (0 if either and position < 2 else position), value


def _may_be_replaced(node: ir.Node) -> bool:
    if node.op_type.startswith("ir::") or not node.pure or not node.outputs:
        return False
    if not node.operator.parameters:
        return node.graph.dialect is None
    return any("Tensor" in parameter.type for parameter in node.operator.parameters)


def _classes(labels: Sequence[object], edges: Sequence[_Edge]) -> list[list[int]]:
    """Return classes, in order, of positions whose surroundings are alike."""
    names = [repr(label) for label in labels]
    colours = [sorted(set(names)).index(name) for name in names]
    while True:
        seen = [
            (
                colours[position],
                tuple(sorted((colours[a], o, i) for a, o, i, b in edges if b == position)),
                tuple(sorted((colours[b], o, i) for a, o, i, b in edges if a == position)),
            )
            for position in range(len(labels))
        ]
        ranked = sorted(set(seen))
        refined = [ranked.index(item) for item in seen]
        if len(ranked) == len(set(colours)):
            break
        colours = refined
    classes: dict[int, list[int]] = {}
    for position, colour in enumerate(refined):
        classes.setdefault(colour, []).append(position)
    return [classes[colour] for colour in sorted(classes)]
