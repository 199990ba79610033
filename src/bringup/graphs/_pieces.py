"""Where a capture is split: what a replay calls eagerly, between two pieces of the graph."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch._library.custom_ops import OPDEFS

from bringup._native import torch_library
from bringup.errors import CaptureError, did_you_mean
from bringup.graphs._dispatch_records import overload_of, split_arguments

SplitPoint: TypeAlias = Any
"""An operator, its name, or a predicate `(op, args, kwargs) -> bool`."""
EAGER = "eager"  # the kind of a node


@dataclass(frozen=True)
class Piece:
    """A stretch of a captured graph that a replay launches as one, up to what runs eagerly.

    Attributes:
        nodes: the numbers of its nodes.
        then: the operator that is called eagerly behind it, `"mylib::attention"`; "" behind the
            last one.

    Examples:
        >>> from bringup import graphs
        >>> graph, x = graphs.CapturedGraph(), torch.ones(2)
        >>> with graphs.capture(graph, split_at=["aten::relu"]):
        ...     y = torch.relu(x)
        >>> graph.pieces[1] == graphs.Piece(range(1, 1), "")
        True
    """

    nodes: range
    then: str


def pieces_of(kinds: Sequence[str], ops: Sequence[str]) -> tuple[Piece, ...]:
    """Return the pieces of a graph whose nodes are of these kinds and operators."""
    ends = [number for number, kind in enumerate(kinds) if kind == EAGER]
    begins = [0, *(end + 1 for end in ends)]
    return tuple(
        Piece(range(begin, end), ops[end] if end < len(ops) else "")
        for begin, end in zip(begins, [*ends, len(ops)], strict=True)
    )


def piece_numbers(kinds: Iterable[str]) -> Iterator[int]:
    """Yield in which piece each node is; an eager call is in the one that it ends."""
    number = 0
    for kind in kinds:
        yield number
        number += kind == EAGER


class SplitPoints:
    """What `split_at` says, checked.

    Raises:
        TypeError: one of them is no operator, name or function.
        ValueError: there is no such operator, or a replay does not call it.
    """

    def __init__(self, given: SplitPoint | Sequence[SplitPoint] | None) -> None:
        given = () if given is None else given
        points = given if isinstance(given, (list, tuple, set, frozenset)) else (given,)
        self.points: tuple[SplitPoint, ...] = ()
        """The same with names for operators."""
        self.names: list[str] = []
        self._predicates: list[Callable[..., Any]] = []
        for point in points:
            name = _name_of(point)
            if name is not None:
                _check_is_called(name)
                self.names.append(name)
            elif callable(point):
                self._predicates.append(point)
            else:
                raise TypeError(
                    "split_at takes operators, their names and functions (op, args, kwargs) -> "
                    f"bool, got {type(point).__name__}"
                )

        self.points = (*self.names, *self._predicates)

    def __bool__(self) -> bool:
        return bool(self.names or self._predicates)

    def functions(self) -> dict[str, Any]:
        """Return the functions of Python that named operators run, as far as they are known."""
        ours = sys.modules.get("bringup.ops.custom.custom_op")
        found: dict[str, Any] = {}
        for name in self.names:
            base = name.partition(".")[0]
            own = OPDEFS.get(base)
            custom = None if ours is None else ours.find_custom_operator(base)
            found[base] = own._init_fn if own is not None else getattr(custom, "_function", None)
        return found

    def begin(self, recorder: Any) -> None:
        """Tell a recorder that has not begun."""
        if self:
            asked = functools.partial(self._asked, recorder)
            recorder.split_at(self.names, asked if self._predicates else None)

    def _asked(self, recorder: Any, name: str, overload: str, values: list[Any]) -> bool:
        recorder.set_paused(True)
        try:
            return self._any(overload_of(name, overload), values)
        finally:
            recorder.set_paused(False)

    def _any(self, op: Any, values: list[Any]) -> bool:
        args, kwargs = split_arguments(op, values)
        for predicate in self._predicates:
            answer = predicate(op, args, kwargs)
            if not isinstance(answer, bool):
                # a TypeError would end in "unsupported operand types" within `x + 1`
                raise CaptureError(f"split_at: {predicate!r} answers True or False, got {answer!r}")
            if answer:
                return True
        return False

    def splits(self, op: Any) -> bool:
        """Return whether it names an overload; predicates are asked in the capture only."""
        base = str(op._schema.name)
        return not {base, f"{base}.{op._overloadname}"}.isdisjoint(self.names)

    def unmet(self, recorder: Any) -> str:
        """Return in words that no call came of some of the names, or "", behind the block."""
        unmet = [name for name in self.names if name not in recorder.split_met]
        return f"split_at: no call came of {', '.join(unmet)}" if unmet else ""


def _name_of(point: SplitPoint) -> str | None:
    """Return `"ns::op"` for all overloads, `"ns::op.overload"` for one; None for a function."""
    if isinstance(point, str):
        return point
    if isinstance(point, torch._ops.OpOverloadPacket):
        return str(point._qualified_op_name)
    op = getattr(point, "overload", None) or getattr(point, "_opoverload", None) or point
    if not isinstance(op, torch._ops.OpOverload):
        return None
    return f"{op._schema.name}.{op._overloadname}"


def _check_is_called(name: str) -> None:
    base, _, overload = name.partition(".")
    schemas = torch._C._jit_get_schemas_for_operator(base) if "::" in base else ()
    found = [
        schema.overload_name
        for schema in schemas
        if overload in ("", schema.overload_name or "default")
    ]
    if not found:
        known = torch._C._dispatch_get_all_op_names()
        bare = [one for one in known if one.partition("::")[2] == name]
        near = did_you_mean(name, bare, most=3, cutoff=0.0) or did_you_mean(name, known)
        raise ValueError(f"split_at: there is no operator '{name}'{near}")
    makes_node = torch_library("graphs.capture").graphs.makes_node
    if not any(makes_node(base, one) for one in found):
        raise ValueError(
            f"split_at: a replay does not call {name}, which gives views or memory and computes"
            " nothing"
        )
