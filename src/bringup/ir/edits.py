"""The four edits a graph knows. Each can be undone, and repeated on a mirrored graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from bringup.ir.node import Node

__all__ = ["Committer", "Edit", "Erase", "Insert", "Move", "Rewire"]


@dataclass(frozen=True)
class Insert:
    """A new node, with the arguments it has at first, stands before another."""

    node: Node
    before: Node
    arguments: tuple[object, ...]
    keywords: Mapping[str, object]

    def inverse(self) -> Erase:
        """Take it out again."""
        return Erase(self.node, self.before, self.arguments, self.keywords)


@dataclass(frozen=True)
class Erase:
    """A node that nobody reads is gone, with its last arguments; `before` stood after it."""

    node: Node
    before: Node
    arguments: tuple[object, ...]
    keywords: Mapping[str, object]

    def inverse(self) -> Insert:
        """Put it back where it was."""
        return Insert(self.node, self.before, self.arguments, self.keywords)


@dataclass(frozen=True)
class Move:
    """A node stands before `before`; it stood before `origin`."""

    node: Node
    origin: Node
    before: Node

    def inverse(self) -> Move:
        """Move it back."""
        return Move(self.node, self.before, self.origin)


@dataclass(frozen=True)
class Rewire:
    """A node has other arguments."""

    node: Node
    old_arguments: tuple[object, ...]
    arguments: tuple[object, ...]
    old_keywords: Mapping[str, object]
    keywords: Mapping[str, object]

    def inverse(self) -> Rewire:
        """Give the old arguments back."""
        return Rewire(
            self.node, self.arguments, self.old_arguments, self.keywords, self.old_keywords
        )


Edit: TypeAlias = Insert | Erase | Move | Rewire

Committer: TypeAlias = Callable[[Sequence[Edit]], None]
"""Repeats a successful pass's edits on the graph that the edited one mirrors."""
