"""Whether an argument can fit at all, whatever has been bound: leaves out hopeless choices.

Compared are operators and host arguments, as deep as the pattern goes; that two readers need the
same value is not. So the answer depends on nothing but the two ends and can be remembered, which
keeps stacked diamonds from being walked once for every path through them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from tests.oracles.matching.predicates import (
    any_value_refusal,
    constant_refusal,
    is_constant,
    is_plain,
    list_refusal,
    with_kinds,
)

from bringup import ir
from bringup._numbers import same_number
from bringup.ir import Node, Value
from bringup.passes.patterns.elements import AnyValue, ArgumentPattern, Constant
from bringup.passes.patterns.pattern import Pattern, Variadic

__all__ = ["Lookahead"]

_Pair: TypeAlias = tuple[Node, Node]


class Lookahead:
    """The answers for one graph while it is not edited."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._known: dict[_Pair, bool] = {}

    def looks_alike(self, pattern: Pattern, wanted: object, found: object) -> bool:
        """Whether the two ends fit at first sight: one comparison of types, nothing behind them."""
        return self._compare(pattern, wanted, found, None) is not False

    def fits(self, pattern: Pattern, wanted: object, found: object) -> bool:
        """Whether `found` can fit as far as operators and host arguments say, all the way down."""
        agenda: list[_Pair] = []
        answer = self._compare(pattern, wanted, found, agenda)
        while agenda:
            pair = agenda[-1]
            if pair in self._known:
                agenda.pop()
                continue
            behind: list[_Pair] = []
            known = self._nodes_fit(pattern, *pair, behind)
            if known is None:
                agenda.extend(behind)
            else:
                self._known[pair] = known
        if answer is None:
            answer = self._compare(pattern, wanted, found, agenda)
        return answer is not False

    def _nodes_fit(
        self, pattern: Pattern, wanted: Node, found: Node, behind: list[_Pair]
    ) -> bool | None:
        """None when that depends on pairs that are not known yet; they are put into `behind`."""
        left, right = wanted.arguments, found.arguments
        if not found.pure or len(left) != len(right):
            return False
        answer = self._all_fit(pattern, with_kinds(wanted, right, found), right, behind)
        dialect = self._graph.dialect
        if answer is True or len(left) < 2 or dialect is None or not dialect.commutes(found):
            return answer
        right = (right[1], right[0], *right[2:])
        swapped = self._all_fit(pattern, with_kinds(wanted, right, found), right, behind)
        return _either(answer, swapped)

    def _all_fit(
        self,
        pattern: Pattern,
        wanted: Sequence[object],
        found: Sequence[object],
        behind: list[_Pair] | None,
    ) -> bool | None:
        answer: bool | None = True
        for one, other in zip(wanted, found, strict=True):
            fits = self._compare(pattern, one, other, behind)
            if fits is False:
                return False
            if fits is None:
                answer = None
        return answer

    def _compare(
        self, pattern: Pattern, wanted: object, found: object, behind: list[_Pair] | None
    ) -> bool | None:
        """True, False, or None for a pair of nodes: known later, put into `behind` if given."""
        if isinstance(wanted, Value):
            return self._compare_value(pattern, wanted, found, behind)
        if not pattern.attributes and is_plain(wanted) and is_plain(found):
            return True
        if isinstance(wanted, ArgumentPattern):
            if behind is None and isinstance(wanted, Constant):
                return is_constant(found)
            return self._compare_open(wanted, found)
        if isinstance(wanted, (tuple, list)):
            if not isinstance(found, (tuple, list)):
                return False
            if any(isinstance(item, Variadic) for item in wanted):
                return len(wanted) - 1 <= len(found)
            if len(wanted) != len(found):
                return False
            return self._all_fit(pattern, wanted, found, behind)
        if isinstance(wanted, (dict, slice)):
            return type(wanted) is type(found)
        if isinstance(found, (Value, tuple, list, dict, slice)):
            return False
        return self._same(wanted, found)

    def _compare_value(
        self, pattern: Pattern, wanted: Value, found: object, behind: list[_Pair] | None
    ) -> bool | None:
        node = wanted.node
        if node.op_type == ir.ONE_OF:
            answer: bool | None = False
            for item in node.arguments:
                answer = _either(answer, self._compare(pattern, item, found, behind))
            return answer
        if not isinstance(found, Value):
            return False
        if node.op_type == ir.INPUT:
            return True
        if node.op_type != found.node.op_type or wanted.index != found.index:
            return False
        if node.op_type == ir.CONSTANT:
            return True
        pair = (node, found.node)
        if pair in self._known:
            return self._known[pair]
        if behind is not None:
            behind.append(pair)
        return None

    def _compare_open(self, wanted: ArgumentPattern, found: object) -> bool:
        if isinstance(wanted, AnyValue):
            return any_value_refusal(wanted, found, self._same) is None
        if isinstance(wanted, Constant):
            return constant_refusal(wanted, found, self._graph.dialect) is None
        assert isinstance(wanted, Variadic)
        return list_refusal(wanted, found) is None

    def _same(self, left: object, right: object) -> bool:
        dialect = self._graph.dialect
        return same_number(left, right) if dialect is None else dialect.same(left, right)


def _either(left: bool | None, right: bool | None) -> bool | None:
    if left is True or right is True:
        return True
    return None if left is None or right is None else False
