"""What is bound while a pattern is being matched, and taking that back."""

from __future__ import annotations

from typing import Any

from bringup.ir import Node
from bringup.passes.patterns.bindings import PatternFrame
from bringup.passes.patterns.pattern import Pattern

__all__ = ["Bindings"]


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
