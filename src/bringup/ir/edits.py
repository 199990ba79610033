"""The edits a graph knows, as its journal lists them: to be repeated on a mirrored graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from bringup.ir._engine import EditKind
from bringup.ir.node import Node

if TYPE_CHECKING:
    from bringup.ir._engine import EditList, GraphCore


@dataclass(frozen=True)
class Insert:
    """A new node, with the arguments it has at first, stands before another.

    An edit as the journal of `Graph.transaction` lists it.

    Attributes:
        node: the new one.
        before: the one that it stands before.
        arguments: its arguments by position.
        keywords: those by name.
    """

    node: Node
    before: Node
    arguments: tuple[object, ...]
    keywords: Mapping[str, object]


@dataclass(frozen=True)
class Erase:
    """An unread node is gone, with its last arguments.

    An edit as the journal of `Graph.transaction` lists it.

    Attributes:
        node: the one that is gone.
        before: the one that stood after it.
        arguments: its last arguments by position.
        keywords: those by name.
    """

    node: Node
    before: Node
    arguments: tuple[object, ...]
    keywords: Mapping[str, object]


@dataclass(frozen=True)
class Move:
    """A node stands before `before`; it stood before `origin`."""

    node: Node
    origin: Node
    before: Node


@dataclass(frozen=True)
class Rewire:
    """A node has other arguments.

    An edit as the journal of `Graph.transaction` lists it.

    Attributes:
        node: the node.
        old_arguments, old_keywords: what it had, by position and by name.
        arguments, keywords: what it has now.
    """

    node: Node
    old_arguments: tuple[object, ...]
    arguments: tuple[object, ...]
    old_keywords: Mapping[str, object]
    keywords: Mapping[str, object]


@dataclass(frozen=True)
class Control:
    """Control edges lead to a node from other nodes than before.

    Attributes:
        node: the node.
        old_inputs: from which nodes edges led to it.
        inputs: from which nodes they lead to it now.
    """

    node: Node
    old_inputs: tuple[Node, ...]
    inputs: tuple[Node, ...]


Edit: TypeAlias = Insert | Erase | Move | Rewire | Control


class Journal(Sequence[Edit]):
    """The edits of one transaction, and after it those that stayed, as objects on demand."""

    def __init__(self, core: GraphCore) -> None:
        self._core = core
        self._open = True
        self._committed: EditList | None = None

    def close(self, committed: EditList | None) -> None:
        """End the transaction; None when it was undone."""
        self._open, self._committed = False, committed

    def repeat_on_fx(self, fx_graph: object, writer: object) -> None:
        """Repeat the edits on torch.fx through `writer` (engine_fx.h), or refuse before any."""
        self._core.write_fx(fx_graph, writer, self._committed)

    def __len__(self) -> int:
        if self._open:
            return self._core.edit_count()
        return 0 if self._committed is None else len(self._committed)

    def __iter__(self) -> Iterator[Edit]:
        for index in range(len(self)):
            yield _edit(*self._core.edit_at(index, self._committed))

    @overload
    def __getitem__(self, index: int) -> Edit: ...

    @overload
    def __getitem__(self, index: slice) -> list[Edit]: ...

    def __getitem__(self, index: int | slice) -> Edit | list[Edit]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"edit {index} of a journal of {size}")
        return _edit(*self._core.edit_at(index % size, self._committed))


Committer: TypeAlias = Callable[[Journal], None]
"""Repeats a successful pass's edits on the graph that the edited one mirrors."""


def _edit(
    kind: EditKind,
    node: Node,
    before: Node,
    origin: Node,
    old_arguments: tuple[Any, ...],
    old_keywords: Mapping[str, object],
    arguments: tuple[Any, ...],
    keywords: Mapping[str, object],
) -> Edit:
    if kind is EditKind.INSERT:
        return Insert(node, before, arguments, keywords)
    if kind is EditKind.ERASE:
        return Erase(node, before, old_arguments, old_keywords)
    if kind is EditKind.MOVE:
        return Move(node, origin, before)
    if kind is EditKind.CONTROL:
        return Control(node, old_arguments, arguments)
    assert kind is EditKind.REWIRE, f"{kind}: graphs of Python keep attributes in their metas"
    return Rewire(node, old_arguments, arguments, old_keywords, keywords)
