"""Finding a pattern in a graph: plain Python, and the oracle of any faster matcher.

A match binds pattern nodes to nodes one to one and pattern inputs to values. Arguments are walked
with a worklist; each node is bound once, so shared subgraphs cost nothing extra. Choices (the order
of commutative operands, which reader of a value is meant) are tried in turn within a fixed number
of steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from bringup import ir
from bringup.ir import Node, Value
from bringup.passes.match import MatchResult
from bringup.passes.patterns import AnyValue, Pattern
from bringup.passes.report import NearMiss

__all__ = ["Candidate", "Matcher"]

_Goal: TypeAlias = tuple[object, object, Node]
"""Pattern argument, target argument, and the target node that has it (to blame)."""
_Choices: TypeAlias = list[list[_Goal]] | None
"""Alternatives of what remains to be compared; None when nothing can fit any more."""
_Agenda: TypeAlias = "tuple[_Goal, _Agenda] | None"


@dataclass(frozen=True)
class Candidate:
    """A match that may be rewritten: where the replacement goes, what must move in front of it."""

    result: MatchResult
    before: Node
    hoist: tuple[Node, ...]


class Matcher:
    """One pattern against the nodes of one graph.

    After `match_at` returned None, `near_miss` has the refusal that came furthest over all calls.
    """

    def __init__(self, pattern: Pattern, graph: ir.Graph, storages: ir.Storages) -> None:
        self.pattern = pattern
        self.near_miss: NearMiss | None = None
        self._graph = graph
        self._storages = storages
        self._nodes = [
            node for node in pattern.graph.nodes if node.op_type not in (ir.INPUT, ir.OUTPUT)
        ]
        self._anchor = pattern.graph.outputs[0].node
        self._returned = frozenset(pattern.graph.outputs)
        self._budget = 1000 + 100 * len(self._nodes)
        self._reset()

    @property
    def anchor_type(self) -> str:
        """The type of the nodes that `match_at` is worth calling for."""
        return self._anchor.op_type

    def candidates(self) -> tuple[Node, ...]:
        """The nodes of the anchor's type; when there is none, the near miss says so."""
        found = self._graph.find(self.anchor_type)
        if not found:
            self.near_miss = NearMiss(
                self.pattern.name,
                "",
                f"the graph has no {self.anchor_type}",
                size=len(self._nodes),
            )
        return found

    def match_at(self, target: Node) -> Candidate | None:
        """The first match whose first output is computed by `target`, or None."""
        self._reset()
        agenda = self._bind_node(self._anchor, target)
        if agenda is None or not self._solve_any(agenda, None):
            return None
        return self._accept()

    def refuse(self, node: Node | None, reason: str, expected: str = "", got: str = "") -> None:
        """The one way in which a candidate is refused: remember the refusal that came furthest."""
        matched = len(self._bound_nodes)
        if self.near_miss is None or matched > self.near_miss.matched:
            name = node.name if node is not None else ""
            self.near_miss = NearMiss(
                self.pattern.name, name, reason, expected, got, matched, len(self._nodes)
            )

    # Binding

    def _reset(self) -> None:
        self._steps = 0
        self._bound_nodes: dict[Node, Node] = {}
        self._taken: dict[Node, Node] = {}
        self._bound_inputs: dict[Value, Value] = {}
        self._captured: dict[str, object] = {}
        self._trail: list[tuple[dict[Any, Any], object]] = []

    def _solve_any(self, alternatives: list[list[_Goal]], agenda: _Agenda) -> bool:
        for goals in alternatives:
            mark = len(self._trail)
            if self._solve(_push(goals, agenda)):
                return True
            self._undo(mark)
        return False

    def _solve(self, agenda: _Agenda) -> bool:
        while True:
            self._steps += 1
            if self._steps > self._budget:
                self.refuse(
                    None,
                    f"gave up after {self._budget} steps: too many orders of commutative operands",
                )
                return False
            if agenda is None:
                return self._seed()
            (pattern, target, owner), agenda = agenda
            alternatives = self._compare(pattern, target, owner)
            if alternatives is None:
                return False
            if len(alternatives) > 1:
                return self._solve_any(alternatives, agenda)
            agenda = _push(alternatives[0], agenda)

    def _seed(self) -> bool:
        """Go on from a bound value to a pattern node that no output reached so far reads."""
        for node in self._nodes:
            if node in self._bound_nodes:
                continue
            known = next(
                (value for value in node.inputs if self._target_of(value) is not None), None
            )
            if known is None:
                continue
            target = self._target_of(known)
            assert target is not None
            readers = [user for user in target.users if user.op_type == node.op_type]
            if not readers:
                self.refuse(
                    target.node, "no reader of this value fits", node.op_type, _users_text(target)
                )
            for reader in readers:
                mark = len(self._trail)
                alternatives = self._bind_node(node, reader)
                if alternatives is not None and self._solve_any(alternatives, None):
                    return True
                self._undo(mark)
            return False
        if len(self._bound_nodes) < len(self._nodes):
            self.refuse(None, "the pattern falls into parts that share no value")
            return False
        return True

    def _target_of(self, value: Value) -> Value | None:
        if value in self._bound_inputs:
            return self._bound_inputs[value]
        node = self._bound_nodes.get(value.node)
        return None if node is None else node.outputs[value.index]

    def _compare(self, pattern: object, target: object, owner: Node) -> _Choices:
        """What remains to be compared so that the two fit."""
        if isinstance(pattern, AnyValue):
            return self._bind_open(pattern, target, owner)
        if isinstance(pattern, Value):
            return self._compare_value(pattern, target, owner)
        if isinstance(pattern, (tuple, list)):
            if not isinstance(target, (tuple, list)) or len(pattern) != len(target):
                return self._no(owner, "an argument differs", pattern, target)
            return [[(one, other, owner) for one, other in zip(pattern, target, strict=True)]]
        if isinstance(target, (Value, tuple, list)) or not self._same(pattern, target):
            return self._no(owner, "an argument differs", pattern, target)
        return [[]]

    def _compare_value(self, pattern: Value, target: object, owner: Node) -> _Choices:
        if not isinstance(target, Value):
            return self._no(owner, "an argument is not a tensor", pattern, target)
        if pattern.node.op_type == ir.INPUT:
            bound = self._bound_inputs.get(pattern)
            if bound is None:
                self._bound_inputs[pattern] = target
                self._trail.append((self._bound_inputs, pattern))
            elif bound is not target:
                return self._no(
                    owner, f"input {pattern.name!r} of the pattern is another value", bound, target
                )
            return [[]]
        if pattern.index != target.index:
            return self._no(
                target.node, "another output of the node is read", pattern.index, target.index
            )
        return self._bind_node(pattern.node, target.node)

    def _bind_node(self, pattern: Node, target: Node) -> _Choices:
        bound = self._bound_nodes.get(pattern)
        if bound is not None:
            return (
                [[]]
                if bound is target
                else self._no(target, "another node is needed", bound, target)
            )
        if pattern.op_type != target.op_type:
            return self._no(target, "another operator", pattern.op_type, target.op_type)
        if target in self._taken:
            return self._no(
                target, "one node would stand for two of the pattern", pattern, self._taken[target]
            )
        if not target.pure:
            return self._no(
                target, "the operator writes memory or is random, so it is never replaced"
            )
        if len(pattern.outputs) > len(target.outputs) or len(pattern.arguments) != len(
            target.arguments
        ):
            return self._no(target, "the call has another form", pattern, target)
        self._bound_nodes[pattern] = target
        self._taken[target] = pattern
        self._trail.extend([(self._bound_nodes, pattern), (self._taken, target)])
        return self._argument_orders(pattern, target)

    def _argument_orders(self, pattern: Node, target: Node) -> list[list[_Goal]]:
        wanted, found = pattern.arguments, target.arguments
        straight = [(one, other, target) for one, other in zip(wanted, found, strict=True)]
        if (
            len(wanted) < 2
            or self._graph.dialect is None
            or not self._graph.dialect.commutes(target)
        ):
            return [straight]
        swapped = [(wanted[0], found[1], target), (wanted[1], found[0], target), *straight[2:]]
        orders = [order for order in (straight, swapped) if all(map(self._plausible, order[:2]))]
        return orders or [straight]

    def _plausible(self, goal: _Goal) -> bool:
        """A cheap look at the two ends of an argument, to leave out orders that cannot fit."""
        pattern, target, _ = goal
        if isinstance(pattern, AnyValue):
            return True
        if not isinstance(pattern, Value):
            return not isinstance(target, Value) and self._same(pattern, target)
        if not isinstance(target, Value):
            return False
        known = self._target_of(pattern)
        if known is not None:
            return known is target
        return pattern.node.op_type in (ir.INPUT, target.node.op_type)

    def _bind_open(self, pattern: AnyValue, target: object, owner: Node) -> _Choices:
        if pattern.name in self._captured:
            if not _same_argument(self._captured[pattern.name], target, self._same):
                return self._no(
                    owner, f"{pattern!r} is another argument", self._captured[pattern.name], target
                )
            return [[]]
        if pattern.name:
            self._captured[pattern.name] = target
            self._trail.append((self._captured, pattern.name))
        return [[]]

    def _undo(self, mark: int) -> None:
        while len(self._trail) > mark:
            table, key = self._trail.pop()
            del table[key]

    def _same(self, left: object, right: object) -> bool:
        dialect = self._graph.dialect
        return (
            type(left) is type(right) and left == right
            if dialect is None
            else dialect.same(left, right)
        )

    def _no(self, node: Node, reason: str, expected: object = "", got: object = "") -> _Choices:
        self.refuse(node, reason, _text(expected), _text(got))
        return None

    # Accepting

    def _accept(self) -> Candidate | None:
        """Whether the bound nodes can be taken out, and where the replacement would stand."""
        matched = frozenset(self._taken)
        if not (self._is_self_contained(matched) and self._is_unwritten()):
            return None
        outputs = [self._target_of(value) for value in self.pattern.graph.outputs]
        readers = [
            user for value in outputs if value for user in value.users if user not in matched
        ]
        last = max(matched, key=lambda node: node._order)
        first_reader = min(readers, key=lambda node: node._order, default=None)
        if first_reader is None or last.is_before(first_reader):
            assert last._next is not None
            before, hoist = last._next, []
        else:
            before = first_reader
            captured = ir.values_in(tuple(self._captured.values()))
            plan = ir.hoist_plan(
                [*self._bound_inputs.values(), *captured], before, matched, self._storages
            )
            if isinstance(plan, str):
                self.refuse(first_reader, plan)
                return None
            hoist = plan
        if not self._may_run_at(before, matched):
            return None
        result = MatchResult(self.pattern, self._bound_nodes, self._bound_inputs, self._captured)
        return Candidate(result, before, tuple(hoist))

    def _is_self_contained(self, matched: frozenset[Node]) -> bool:
        for pattern, target in self._bound_nodes.items():
            for index, value in enumerate(target.outputs):
                if index < len(pattern.outputs) and pattern.outputs[index] in self._returned:
                    continue
                outside = next((user for user in value.users if user not in matched), None)
                if outside is not None:
                    self.refuse(
                        target,
                        f"its output {index} is used outside of the match by {outside.name!r}; "
                        "make it an output of the pattern",
                    )
                    return False
        captured = ir.values_in(tuple(self._captured.values()))
        for value in (*self._bound_inputs.values(), *captured):
            if value.node in matched:
                self.refuse(
                    value.node, "an input of the pattern would be computed inside the match"
                )
                return False
        return True

    def _is_unwritten(self) -> bool:
        for value in self.pattern.graph.outputs:
            target = self._target_of(value)
            assert target is not None
            writer = self._storages.writer_of(target)
            if writer is not None:
                self.refuse(
                    target.node, f"its memory is written by {writer.name!r}, so it is not replaced"
                )
                return False
        return True

    def _may_run_at(self, before: Node, matched: frozenset[Node]) -> bool:
        """Whether what the matched nodes read is unwritten between them and the replacement."""
        for node in matched:
            first, last = (node, before) if node.is_before(before) else (before, node)
            for value in node.inputs:
                writer = self._storages.writer_between(value, first, last)
                if writer is not None:
                    self.refuse(
                        node,
                        f"{writer.name!r} writes what it reads between it and the replacement",
                    )
                    return False
        return True


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


def _text(item: object) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, Node):
        return repr(item)
    return ir.argument_text(item)


def _users_text(value: Value) -> str:
    types = sorted({user.op_type for user in value.users})
    return ", ".join(types) or "no reader"
