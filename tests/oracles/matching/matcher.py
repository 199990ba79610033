"""Finding a pattern in a graph: the oracle of the native matcher, in plain Python.

A match binds pattern nodes to nodes one to one and pattern inputs to values. Arguments are walked
with a worklist; each node is bound once, so shared subgraphs cost nothing extra. Choices (the order
of commutative operands, which reader of a value is meant, alternatives) are tried in turn, those
that cannot fit left out, within a fixed number of second tries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tests.oracles.matching.bindings import Bindings
from tests.oracles.matching.boundary import RETURNS_INPUT, accept
from tests.oracles.matching.linking import link_to_known, missing_edge, types_text
from tests.oracles.matching.lookahead import Lookahead
from tests.oracles.matching.predicates import (
    Refusal,
    any_value_refusal,
    constant_refusal,
    data_refusal,
    is_plain,
    list_refusal,
    tensor_refusal,
    text,
    with_kinds,
)

from bringup import ir
from bringup._numbers import same_number
from bringup.ir import Node, Value
from bringup.passes.patterns.bindings import PatternFrame, resolve
from bringup.passes.patterns.elements import AnyValue, Constant
from bringup.passes.patterns.match import PlacedMatch
from bringup.passes.patterns.pattern import Pattern, Variadic
from bringup.passes.report import NearMiss

__all__ = ["Matcher"]


@dataclass(frozen=True)
class _Decision:
    """Take this alternative of an `ir::one_of` node."""

    node: Node
    index: int


_Goal: TypeAlias = tuple[PatternFrame, object, object, Node]
"""Pattern argument, node or decision; target argument or node; the node to blame."""
_Choices: TypeAlias = list[list[_Goal]]
"""Alternatives of what remains to be compared; empty when nothing can fit any more."""
_Agenda: TypeAlias = "tuple[_Goal, _Agenda] | None"


class Matcher:
    """One pattern against the nodes of one graph.

    After `match_at` returned None, `near_miss` has the refusal that came furthest over all calls.
    """

    def __init__(self, pattern: Pattern, graph: ir.Graph, aliases: ir.AliasAnalysis) -> None:
        self.pattern = pattern
        self.near_miss: NearMiss | None = None
        self._graph = graph
        self._aliases = aliases
        self._anchors = _anchors(pattern.graph.outputs[0])
        self._retries = 1000 + 100 * len(pattern.nodes)
        self._reset()

    @property
    def anchor_types(self) -> tuple[str, ...]:
        """The types of the nodes that `match_at` is worth calling for, the preferred one first."""
        return tuple(dict.fromkeys(node.op_type for _, node in self._anchors))

    def candidates(self) -> tuple[Node, ...]:
        """The nodes of the anchor's types; when there is none, the near miss says so."""
        found = tuple(node for kind in self.anchor_types for node in self._graph.find(kind))
        if not found:
            wanted = " or ".join(self.anchor_types)
            self.near_miss = NearMiss(
                self.pattern.name,
                "",
                f"the graph has no {wanted}" if wanted else RETURNS_INPUT,
                size=len(self.pattern.nodes),
            )
        return found

    def match_at(self, target: Node) -> PlacedMatch | None:
        """The first match whose first output is computed by `target`, or None."""
        self._reset()
        root = self._bound.root
        alternatives: _Choices = [
            [
                *((root, decision, None, target) for decision in decisions),
                (root, node, target, target),
            ]
            for decisions, node in self._anchors
            if node.op_type == target.op_type
        ]
        if not alternatives:
            self._no(target, "another operator", " or ".join(self.anchor_types), target.op_type)
        return self._search(alternatives)

    def matches(self) -> Iterator[PlacedMatch]:
        """Every match among the candidates, in their order; the graph may be edited meanwhile."""
        for target in self.candidates():
            if self._graph.owns(target):
                candidate = self.match_at(target)
                if candidate is not None:
                    yield candidate

    def refuse(self, node: Node | None, reason: str, expected: str = "", got: str = "") -> None:
        """The one way in which a candidate is refused: remember the refusal that came furthest."""
        matched = len(self._bound.root.nodes)
        if self.near_miss is None or matched > self.near_miss.matched:
            name = node.name if node is not None else ""
            size = len(self.pattern.nodes)
            self.near_miss = NearMiss(self.pattern.name, name, reason, expected, got, matched, size)

    # Searching

    def _reset(self) -> None:
        self._bound = Bindings(self.pattern)
        self._ahead = Lookahead(self._graph)

    def _search(self, alternatives: _Choices) -> PlacedMatch | None:
        """Depth first over all choices, without recursion."""
        pending: list[tuple[int, _Choices, int, _Agenda]] = []
        retries = 0
        rest: _Agenda = None
        while True:
            taken = 0
            if not alternatives:
                if not pending:
                    return None
                retries += 1
                if retries > self._retries:
                    self._give_up()
                    return None
                savepoint, alternatives, taken, rest = pending.pop()
                self._bound.rollback_to(savepoint)
            if taken + 1 < len(alternatives):
                pending.append((self._bound.savepoint(), alternatives, taken + 1, rest))
            agenda = _push(alternatives[taken], rest)
            if agenda is None:
                seeds = self._seeds()
                if seeds is None:
                    candidate = accept(self._bound, self._aliases, self.refuse)
                    if candidate is not None:
                        return candidate
                alternatives, rest = seeds or [], None
            else:
                goal, rest = agenda
                alternatives = self._compare(*goal)

    def _give_up(self) -> None:
        self.refuse(
            None,
            f"gave up after {self._retries} tries: too many choices (orders of commutative "
            "operands, readers, alternatives)",
        )

    # Seeding: from a bound value to an output that no walk has reached yet

    def _seeds(self) -> _Choices | None:
        """How the search may go on with the first unbound output; None when all are bound."""
        bound = self._bound
        root = bound.root
        output = next((v for v in self.pattern.graph.outputs if resolve(root, v) is None), None)
        if output is None:
            return None
        options = self._seed_options(output)
        certain = [option for option in options if not option[0]]
        choices: _Choices = []
        for decisions, node in certain[:1] or options:
            decided: list[_Goal] = [
                (root, decision, None, self._anchor()) for decision in decisions
            ]
            if node is None:
                choices.append(decided)
                continue
            targets = self._seed_targets(node)
            choices.extend([*decided, (root, node, target, target)] for target in targets)
        if not options:
            self.refuse(None, "the pattern falls into parts that share no value")
        return choices

    def _seed_options(self, output: Value) -> list[tuple[tuple[_Decision, ...], Node | None]]:
        """Unbound nodes behind `output` that read a bound value, and the decisions they imply."""
        root = self._bound.root
        options: list[tuple[tuple[_Decision, ...], Node | None]] = []
        agenda: list[tuple[object, tuple[_Decision, ...]]] = [(output, ())]
        seen: set[Node] = set()
        while agenda:
            value, decisions = agenda.pop()
            if not isinstance(value, Value):
                continue
            node = value.node
            if resolve(root, value) is not None:
                if decisions:
                    options.append((decisions, None))
            elif node in seen or node.op_type == ir.INPUT:
                continue
            elif node.op_type == ir.ONE_OF:
                seen.add(node)
                taken = root.chosen.get(node)
                for index, item in reversed(list(enumerate(node.arguments))):
                    if taken is None:
                        agenda.append((item, (*decisions, _Decision(node, index))))
                    elif taken == index:
                        agenda.append((item, decisions))
            else:
                seen.add(node)
                reads = any(resolve(root, item) is not None for item in node.inputs)
                if reads or link_to_known(root, node) is not None:
                    options.append((decisions, node))
                else:
                    agenda.extend((item, decisions) for item in reversed(node.inputs))
        return options

    def _seed_targets(self, node: Node) -> list[Node]:
        """The nodes that may stand for an unbound one, in graph order: what reads a value that is
        bound, or where there is none, what has a control edge. None after a refusal.
        """
        value = self._rarest(node)
        if value is not None:
            readers = [user for user in value.users if user.op_type == node.op_type]
            if not readers:
                users = _users_text(value)
                self._no(value.node, "no reader of this value fits", node.op_type, users)
            return readers
        link = link_to_known(self._bound.root, node)
        assert link is not None, "it would be no option"
        targets = link.targets(node.op_type)
        if not targets:
            self.refuse(link.known, *link.refusal(node.op_type))
        return targets

    def _rarest(self, node: Node) -> Value | None:
        """The bound value among the inputs of a pattern node that the fewest nodes read, if any."""
        known = (resolve(self._bound.root, value) for value in node.inputs)
        bound = [value for value in known if value is not None]
        return min(bound, key=lambda value: len(value.users), default=None)

    def _anchor(self) -> Node:
        return next(iter(self._bound.root.nodes.values()))

    # Comparing

    def _compare(
        self, frame: PatternFrame, pattern: object, target: object, owner: Node
    ) -> _Choices:
        """What remains to be compared so that the two fit."""
        if isinstance(pattern, _Decision):
            self._bound.set(frame.chosen, pattern.node, pattern.index)
            return [[]]
        if isinstance(pattern, Node):
            assert isinstance(target, Node)
            return self._bind_node(frame, pattern, target)
        if isinstance(pattern, Value):
            return self._compare_value(frame, pattern, target, owner)
        if isinstance(pattern, AnyValue):
            refusal = any_value_refusal(pattern, target, self._same)
            return self._named(frame, pattern.name, pattern, target, owner, refusal)
        if isinstance(pattern, Constant):
            refusal = constant_refusal(pattern, target, self._graph.dialect)
            return self._named(frame, pattern.name, pattern, target, owner, refusal)
        if isinstance(pattern, Variadic):
            return self._compare_variadic(frame, pattern, target, owner)
        return self._compare_host(frame, pattern, target, owner)

    def _compare_host(
        self, frame: PatternFrame, pattern: object, target: object, owner: Node
    ) -> _Choices:
        if not frame.pattern.attributes and is_plain(pattern) and is_plain(target):
            return [[]]
        if isinstance(pattern, (tuple, list)):
            return self._compare_list(frame, pattern, target, owner)
        if isinstance(pattern, dict):
            if not isinstance(target, dict) or list(pattern) != list(target):
                return self._differs(owner, pattern, target)
            return [[(frame, item, target[key], owner) for key, item in pattern.items()]]
        if isinstance(pattern, slice):
            if not isinstance(target, slice):
                return self._differs(owner, pattern, target)
            ends = ("start", "stop", "step")
            return [[(frame, getattr(pattern, end), getattr(target, end), owner) for end in ends]]
        if isinstance(target, (Value, tuple, list, dict, slice)):
            return self._differs(owner, pattern, target)
        if not self._same(pattern, target):
            return self._differs(owner, pattern, target)
        return [[]]

    def _compare_list(
        self, frame: PatternFrame, pattern: Sequence[object], target: object, owner: Node
    ) -> _Choices:
        if not isinstance(target, (tuple, list)):
            return self._differs(owner, pattern, target)
        open_at = next((i for i, item in enumerate(pattern) if isinstance(item, Variadic)), None)
        if open_at is None and len(pattern) == len(target):
            return [[(frame, one, two, owner) for one, two in zip(pattern, target, strict=True)]]
        back = 0 if open_at is None else len(pattern) - open_at - 1
        if open_at is None or open_at + back > len(target):
            return self._differs(owner, pattern, target)
        middle = tuple(target[open_at : len(target) - back])
        ends = (*target[:open_at], middle, *target[len(target) - back :])
        return [[(frame, one, two, owner) for one, two in zip(pattern, ends, strict=True)]]

    def _compare_value(
        self, frame: PatternFrame, pattern: Value, target: object, owner: Node
    ) -> _Choices:
        node = pattern.node
        if node.op_type == ir.ONE_OF:
            return self._compare_one_of(frame, pattern, target, owner)
        if not isinstance(target, Value):
            return self._no(
                owner,
                "an argument is not a tensor",
                ir.argument_text(pattern),
                ir.argument_text(target),
            )
        if node.op_type == ir.INPUT:
            known = frame.inputs.get(pattern)
            if known is not None and known is not target:
                return self._no(
                    owner, f"input {pattern.name!r} of the pattern is another value", known, target
                )
            if known is None:
                if not self._is_as_stated(frame, pattern, target):
                    return []
                if not self._has_control_edges(frame, node, target.node):
                    return []
                self._bound.set(frame.inputs, pattern, target)
            return [[]]
        if pattern.index != target.index:
            return self._no(
                target.node, "another output of the node is read", pattern.index, target.index
            )
        return self._bind_node(frame, node, target.node)

    def _compare_one_of(
        self, frame: PatternFrame, pattern: Value, target: object, owner: Node
    ) -> _Choices:
        node = pattern.node
        if isinstance(target, Value) and not self._is_as_stated(frame, pattern, target):
            return []
        taken = frame.chosen.get(node)
        if taken is not None:
            return [[(frame, node.arguments[taken], target, owner)]]
        fitting = [
            (index, item)
            for index, item in enumerate(node.arguments)
            if self._plausible(frame, item, target)
        ]
        if not fitting:
            return self._no(
                owner, "none of the alternatives fits", _alternatives_text(node), _kind_text(target)
            )
        if len(fitting) > 1:
            likely = [pair for pair in fitting if self._ahead.fits(frame.pattern, pair[1], target)]
            fitting = likely or fitting[:1]
        return [
            [(frame, _Decision(node, index), None, owner), (frame, item, target, owner)]
            for index, item in fitting
        ]

    def _compare_variadic(
        self, frame: PatternFrame, pattern: Variadic, target: object, owner: Node
    ) -> _Choices:
        refusal = list_refusal(pattern, target)
        if refusal is not None or pattern.each is None:
            return self._named(frame, pattern.name, pattern, target, owner, refusal)
        assert isinstance(target, (tuple, list))
        if pattern.name in frame.lists:
            known = tuple(value for value, _ in frame.lists[pattern.name])
            if known != tuple(target):
                return self._no(owner, f"{pattern!r} is another argument", known, target)
            return [[]]
        items = {value: PatternFrame(pattern.each, frame) for value in target}
        self._bound.set(frame.lists, pattern.name, [(value, items[value]) for value in target])
        return [
            [(item, item.pattern.graph.outputs[0], value, owner) for value, item in items.items()]
        ]

    def _named(
        self,
        frame: PatternFrame,
        name: str,
        pattern: object,
        target: object,
        owner: Node,
        refusal: Refusal | None,
    ) -> _Choices:
        """What an open argument stands for: the same wherever its name stands."""
        if refusal is not None:
            return self._no(owner, *refusal)
        if not name:
            return [[]]
        names = frame.scope(name).names
        if name not in names:
            self._bound.set(names, name, target)
        elif not _same_argument(names[name], target, self._same):
            known = ir.argument_text(names[name])
            reason = f"{pattern!r} is another argument"
            return self._no(owner, reason, known, ir.argument_text(target))
        return [[]]

    # Nodes

    def _bind_node(self, frame: PatternFrame, pattern: Node, target: Node) -> _Choices:
        known = frame.nodes.get(pattern)
        if known is not None:
            return (
                [[]]
                if known is target
                else self._no(target, "another node is needed", known, target)
            )
        if pattern.op_type != target.op_type:
            return self._no(target, "another operator", pattern.op_type, target.op_type)
        if pattern.op_type == ir.CONSTANT:
            return self._bind_constant(frame, pattern, target)
        other = self._bound.taken.get(target)
        if other is not None and other is not pattern:
            return self._no(target, "one node would stand for two of the pattern", pattern, other)
        if not target.pure:
            return self._no(
                target, "the operator writes memory or is random, so it is never replaced"
            )
        if len(pattern.outputs) > len(target.outputs) or len(pattern.arguments) != len(
            target.arguments
        ):
            return self._no(target, "the call has another form", pattern, target)
        for value, found in zip(pattern.outputs, target.outputs, strict=False):
            if not self._is_as_stated(frame, value, found):
                return []
        if not self._has_control_edges(frame, pattern, target):
            return []
        self._take(frame, pattern, target)
        return self._argument_orders(frame, pattern, target)

    def _bind_constant(self, frame: PatternFrame, pattern: Node, target: Node) -> _Choices:
        if frame.pattern.constant_values:
            refusal = data_refusal(pattern, target, self._graph.dialect)
            if refusal is not None:
                return self._no(target, *refusal)
        if not self._is_as_stated(frame, pattern.output, target.output):
            return []
        self._take(frame, pattern, target)
        return [[]]

    def _take(self, frame: PatternFrame, pattern: Node, target: Node) -> None:
        self._bound.set(frame.nodes, pattern, target)
        if target not in self._bound.taken:
            self._bound.set(self._bound.taken, target, pattern)

    def _argument_orders(self, frame: PatternFrame, pattern: Node, target: Node) -> _Choices:
        found = target.arguments
        wanted = with_kinds(pattern, found, target)
        straight: list[_Goal] = [
            (frame, one, other, target) for one, other in zip(wanted, found, strict=True)
        ]
        if pattern.keywords or target.keywords:
            straight.append((frame, dict(pattern.keywords), dict(target.keywords), target))
        dialect = self._graph.dialect
        if len(wanted) < 2 or dialect is None or not dialect.commutes(target):
            return [straight]
        one, other = with_kinds(pattern, (found[1], found[0], *found[2:]), target)[:2]
        swapped: list[_Goal] = [
            (frame, one, found[1], target),
            (frame, other, found[0], target),
            *straight[2:],
        ]
        orders = [
            order
            for order in (straight, swapped)
            if all(self._plausible(frame, one, two) for _, one, two, _ in order[:2])
        ]
        if len(orders) > 1:
            orders = [
                order
                for order in orders
                if all(self._ahead.fits(frame.pattern, one, two) for _, one, two, _ in order[:2])
            ]
        return orders or [straight]

    def _plausible(self, frame: PatternFrame, pattern: object, target: object) -> bool:
        """A cheap look at the two ends of an argument, to leave out what cannot fit."""
        if isinstance(pattern, Value):
            known = resolve(frame, pattern)
            if known is not None:
                return known is target
        return self._ahead.looks_alike(frame.pattern, pattern, target)

    def _is_as_stated(self, frame: PatternFrame, pattern: Value, target: Value) -> bool:
        """Whether the target has the dtype, shape, ... that `where` asks for."""
        constraint = frame.pattern.constraint(pattern)
        if constraint is None:
            return True
        found = tensor_refusal(
            constraint, pattern.name, target.desc, lambda name: frame.scope(name).sizes.get(name)
        )
        if isinstance(found, Refusal):
            self.refuse(target.node, *found)
            return False
        for name, size in found:
            self._bound.set(frame.scope(name).sizes, name, size)
        return True

    def _has_control_edges(self, frame: PatternFrame, pattern: Node, target: Node) -> bool:
        """Whether control edges lead where those of the pattern do, as far as is known."""
        missing = missing_edge(frame, pattern, target)
        if missing is not None:
            self.refuse(missing[0], *missing[1])
        return missing is None

    def _same(self, left: object, right: object) -> bool:
        dialect = self._graph.dialect
        return same_number(left, right) if dialect is None else dialect.same(left, right)

    def _differs(self, owner: Node, pattern: object, target: object) -> _Choices:
        return self._no(
            owner, "an argument differs", ir.argument_text(pattern), ir.argument_text(target)
        )

    def _no(self, node: Node, reason: str, expected: object = "", got: object = "") -> _Choices:
        self.refuse(node, reason, text(expected), text(got))
        return []


def _anchors(output: Value) -> list[tuple[tuple[_Decision, ...], Node]]:
    """The nodes that may compute the first output of a pattern, in order of preference."""
    anchors: list[tuple[tuple[_Decision, ...], Node]] = []
    agenda: list[tuple[Any, tuple[_Decision, ...]]] = [(output, ())]
    while agenda:
        value, decisions = agenda.pop()
        node = value.node
        if node.op_type == ir.INPUT:
            continue  # nothing there can be replaced
        if node.op_type != ir.ONE_OF:
            anchors.append((decisions, node))
            continue
        for index, item in reversed(list(enumerate(node.arguments))):
            agenda.append((item, (*decisions, _Decision(node, index))))
    return anchors


def _push(goals: list[_Goal], agenda: _Agenda) -> _Agenda:
    for goal in reversed(goals):
        agenda = (goal, agenda)
    return agenda


def _same_argument(left: object, right: object, same: object) -> bool:
    if isinstance(left, (tuple, list)) and isinstance(right, (tuple, list)):
        return len(left) == len(right) and all(
            _same_argument(one, other, same) for one, other in zip(left, right, strict=True)
        )
    if isinstance(left, Value) or isinstance(right, Value):
        return left is right
    return bool(same(left, right))  # type: ignore[operator]


def _users_text(value: Value) -> str:
    return types_text(value.users) if value.users else "no reader"


def _alternatives_text(node: Node) -> str:
    shown = [
        item.node.op_type
        if isinstance(item, Value) and item.node.op_type != ir.INPUT
        else ir.argument_text(item)
        for item in node.arguments
    ]
    return " or ".join(shown)


def _kind_text(target: object) -> str:
    return target.node.op_type if isinstance(target, Value) else ir.argument_text(target)
