"""What a graph has besides its nodes: attributes, and subgraphs that its nodes call."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from bringup.ir.edits import Journal
from bringup.ir.node import Node

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on


T = TypeVar("T")
_NUMBERS = itertools.count(1)


class GraphTree:
    """The part of `Graph` that is about attributes and subgraphs; undone with a transaction."""

    name: str
    withholds_shapes = False
    """Whether asking for a shape that is not inferred yet is an error."""
    shapes_pending = False
    """Whether it was built before its operators were known, without shapes since."""

    def __init__(self) -> None:
        self.graph_id = next(_NUMBERS)
        self._attributes: dict[str, object] = {}
        self._subgraphs: dict[str, tuple[Self, Node | None]] = {}
        self._parent: tuple[Self, Node | None] | None = None
        self._undo: list[Callable[[], None]] = []
        self._journal: Journal | None = None

    def _live(self) -> None:
        raise NotImplementedError

    def _own(self, node: Node) -> None:
        raise NotImplementedError

    def owns(self, node: Node | None) -> bool:
        """Return whether the node is one of this graph."""
        raise NotImplementedError

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Return all nodes of the graph, in order."""
        raise NotImplementedError

    # Attributes

    @property
    def attributes(self) -> Mapping[str, object]:
        """Return all attributes of the graph."""
        self._live()
        return MappingProxyType(self._attributes)

    def has_attr(self, name: str) -> bool:
        """Return whether the graph has this attribute."""
        self._live()
        return name in self._attributes

    def get_attr(self, name: str) -> object:
        """Return an attribute of the graph; `KeyError` that lists them when there is none."""
        self._live()
        if name not in self._attributes:
            raise KeyError(
                f"graph {self.name!r} has no attribute {name!r}; it has {sorted(self._attributes)}"
            )
        return self._attributes[name]

    def set_attr(self, name: str, value: object) -> None:
        """Set an attribute of the graph."""
        self._live()
        self.set_entry(self._attributes, name, value)

    # Subgraphs

    def get_parent_graph(self) -> Self | None:
        """Return the graph whose node calls this one; None for a root graph."""
        self._live()
        return None if self._parent is None else self._parent[0]

    def get_parent_node(self) -> Node | None:
        """Return the node that calls this graph; None for a root graph, or if the node is gone."""
        self._live()
        if self._parent is None or self._parent[1] is None:
            return None
        graph, node = self._parent
        return node if graph.owns(node) else None

    def get_all_subgraphs(self) -> tuple[Self, ...]:
        """Return the subgraphs of this graph (not theirs), as they were added."""
        self._live()
        return tuple(subgraph for subgraph, _ in self._subgraphs.values())

    def has_subgraph(self, name: str) -> bool:
        """Return whether the graph has a subgraph of this name."""
        self._live()
        return name in self._subgraphs

    def get_subgraph(self, name: str) -> Self:
        """Return the subgraph of this name; `KeyError` that lists them when there is none."""
        self._live()
        if name not in self._subgraphs:
            raise KeyError(
                f"graph {self.name!r} has no subgraph {name!r}; it has {list(self._subgraphs)}"
            )
        return self._subgraphs[name][0]

    @overload
    def add_subgraph(self, name: Self, /) -> None: ...

    @overload
    def add_subgraph(self, name: str, subgraph: Self, node: Node | None = None) -> None: ...

    def add_subgraph(
        self, name: str | Self, subgraph: Self | None = None, node: Node | None = None
    ) -> None:
        """Add a graph that `node` calls (a branch, a loop's body). Passes visit it if it has a
        node. A graph alone is added by its own name, as in GE.

        Raises `TypeError` when no graph is given, `ValueError` when the name is taken, the graph
        has a parent already, or it would hold itself.
        """
        self._live()
        given: Any = name
        if isinstance(given, GraphTree) and subgraph is None:
            name, subgraph = given.name, given  # type: ignore[assignment]
        if not isinstance(name, str) or not isinstance(subgraph, GraphTree):
            raise TypeError(f"add_subgraph takes a graph, or a name and a graph, got {given!r}")
        if node is not None:
            self._own(node)
        if name in self._subgraphs:
            raise ValueError(f"graph {self.name!r} has a subgraph {name!r} already")
        if subgraph.get_parent_graph() is not None:
            raise ValueError(f"graph {subgraph.name!r} is a subgraph already")
        above: object = self
        while isinstance(above, GraphTree):
            if above is subgraph:
                raise ValueError(f"graph {subgraph.name!r} cannot hold itself")
            above = above.get_parent_graph()
        self.set_entry(self._subgraphs, name, (subgraph, node))
        self._adopted(subgraph, (self, node))

    def remove_subgraph(self, name: str) -> Self:
        """Take a subgraph out and return it; `KeyError` that lists them when there is none."""
        subgraph = self.get_subgraph(name)
        kept = dict(self._subgraphs)
        del self._subgraphs[name]
        self._remember(lambda: self._subgraphs.update(kept))
        self._adopted(subgraph, None)
        return subgraph

    def _adopted(self, subgraph: Self, parent: tuple[Any, Node | None] | None) -> None:
        former = subgraph._parent
        subgraph._parent = parent

        def restore() -> None:
            subgraph._parent = former

        self._remember(restore)

    # Undoing

    @property
    def is_in_transaction(self) -> bool:
        """Return whether a transaction is open: a pass edits it."""
        return self._journal is not None

    def set_entry(self, table: dict[str, T], name: str, value: T) -> None:
        """Set an entry of a table that belongs to this graph; undone when the transaction is."""
        former = {name: table[name]} if name in table else {}
        table[name] = value

        def restore() -> None:
            table.pop(name, None)
            table.update(former)

        self._remember(restore)

    def _remember(self, restore: Callable[[], None]) -> None:
        if self._journal is not None:
            self._undo.append(restore)

    def _undo_since(self, mark: int) -> None:
        while len(self._undo) > mark:
            self._undo.pop()()
