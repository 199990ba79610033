"""What the pieces of a pattern stand for while it is being matched, and taking that back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bringup import ir
from bringup.ir import Node, Value
from bringup.passes.patterns.pattern import Pattern

__all__ = ["Bindings", "PatternFrame", "resolve"]


class PatternFrame:
    """One occurrence of a pattern: the whole, or one item of a list whose items are patterns."""

    __slots__ = ("chosen", "inputs", "lists", "names", "nodes", "parent", "pattern", "sizes")

    def __init__(self, pattern: Pattern, parent: PatternFrame | None = None) -> None:
        self.pattern = pattern
        self.parent = parent
        self.nodes: dict[Node, Node] = {}
        self.inputs: dict[Value, Value] = {}
        self.chosen: dict[Node, int] = {}
        self.names: dict[str, object] = {}
        self.sizes: dict[str, ir.Dim] = {}
        self.lists: dict[str, list[tuple[Value, PatternFrame]]] = {}

    def scope(self, name: str) -> PatternFrame:
        """Where a name belongs: the outermost pattern around this one that has it too."""
        found, frame = self, self.parent
        while frame is not None:
            if name in frame.pattern.names:
                found = frame
            frame = frame.parent
        return found

    def frames(self) -> Iterator[PatternFrame]:
        """This one and those of the items in its lists, each once."""
        agenda = [self]
        seen: set[PatternFrame] = set()
        while agenda:
            frame = agenda.pop()
            if frame not in seen:
                seen.add(frame)
                yield frame
                items = [item for name in sorted(frame.lists) for _, item in frame.lists[name]]
                agenda.extend(reversed(items))


class Bindings:
    """Every frame of one attempt, and a trail by which bindings are taken back."""

    def __init__(self, pattern: Pattern) -> None:
        self.root = PatternFrame(pattern)
        self.taken: dict[Node, Node] = {}
        """By node of the graph: the pattern node that it stands for."""
        self._trail: list[tuple[dict[Any, Any], object]] = []

    def set(self, table: dict[Any, Any], key: object, item: object) -> None:
        """Bind `key`, which is unbound, until this is undone."""
        table[key] = item
        self._trail.append((table, key))

    def savepoint(self) -> int:
        """A state to go back to with `rollback_to`."""
        return len(self._trail)

    def rollback_to(self, savepoint: int) -> None:
        """Take back all that was bound since `savepoint`."""
        while len(self._trail) > savepoint:
            table, key = self._trail.pop()
            del table[key]


def resolve(frame: PatternFrame, value: object) -> Value | None:
    """What a value of the pattern stands for; None when it is unbound, or no value."""
    while isinstance(value, Value) and value.node.op_type == ir.ONE_OF:
        taken = frame.chosen.get(value.node)
        value = None if taken is None else value.node.arguments[taken]
    if not isinstance(value, Value):
        return None
    if value.node.op_type == ir.INPUT:
        return frame.inputs.get(value)
    node = frame.nodes.get(value.node)
    return None if node is None else node.outputs[value.index]
