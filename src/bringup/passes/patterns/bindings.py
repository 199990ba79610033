"""What the pieces of a pattern stand for in one match."""

from __future__ import annotations

from collections.abc import Iterator

from bringup import ir
from bringup.ir import Node, Value
from bringup.passes.patterns.pattern import Pattern


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
        """Return where a name belongs: the outermost pattern around this one that has it too."""
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


def resolve(frame: PatternFrame, value: object) -> Value | None:
    """Return what a value of the pattern stands for; None when it is unbound, or no value."""
    while isinstance(value, Value) and value.node.op_type == ir.ONE_OF:
        taken = frame.chosen.get(value.node)
        value = None if taken is None else value.node.arguments[taken]
    if not isinstance(value, Value):
        return None
    if value.node.op_type == ir.INPUT:
        return frame.inputs.get(value)
    node = frame.nodes.get(value.node)
    return None if node is None else node.outputs[value.index]
