"""Who shares memory with whom, and who writes it: what may not be moved across what."""

from __future__ import annotations

from bringup.ir.graph import Graph
from bringup.ir.node import CONSTANT, INPUT, Node, Value, values_in

__all__ = ["Storages", "shared_outputs"]


class Storages:
    """The storage classes of a graph's values, and the nodes that write each.

    Built once per pass; a graph without writers or opaque nodes (nearly every graph that AOT
    autograd makes) costs one walk over its operators and answers at once.
    """

    def __init__(self, graph: Graph, *, track_views: bool = False) -> None:
        self._track_views = track_views
        self.rebuild(graph)

    def rebuild(self, graph: Graph) -> None:
        """Forget everything and look at the graph again: for when edits of it were undone."""
        self._root: dict[Node, Node] = {}
        self._writers: dict[Node, list[Node]] = {}
        self._barriers: list[Node] = []
        nodes = graph.nodes
        self._quiet = all(not (node.operator.mutates or node.operator.opaque) for node in nodes)
        if self._track_views or not self._quiet:
            for node in nodes:
                self.record(node)

    @property
    def quiet(self) -> bool:
        """Whether nothing in the graph writes memory, as far as anybody knows."""
        return self._quiet

    def root(self, value: Value) -> Node:
        """The node that stands for the storage of `value`, if views are tracked or not quiet."""
        return self._find(value.node)

    def writer_between(self, value: Value, first: Node, last: Node) -> Node | None:
        """A node from `first` on and before `last` that may write the memory of `value`."""
        if self._quiet:
            return None
        writers = self._writers.get(self._find(value.node), [])
        for node in (*writers, *self._barriers):
            if not node.is_before(first) and node.is_before(last):
                return node
        return None

    def writer_of(self, value: Value) -> Node | None:
        """Any node that may write the memory of `value`, wherever it stands."""
        if self._quiet:
            return None
        writers = self._writers.get(self._find(value.node), [])
        return writers[0] if writers else None

    def replaced(self, old: Value, new: Value) -> None:
        """`new` stands where `old` stood: from now on they count as one storage."""
        if not self._quiet:
            self._root[self._find(new.node)] = self._find(old.node)

    def record(self, node: Node) -> None:
        """Take one more node into account."""
        operator = node.operator
        if self._quiet and (operator.mutates or operator.opaque):
            self._quiet = False
        for index in operator.aliases | operator.mutates:
            for value in values_in(node.arguments[index]):
                self._root[self._find(node)] = self._find(value.node)
        for index in operator.mutates:
            for value in values_in(node.arguments[index]):
                self._writers.setdefault(self._find(value.node), []).append(node)
        if operator.opaque:
            self._barriers.append(node)

    def _find(self, node: Node) -> Node:
        root = node
        while (above := self._root.get(root)) is not None and above is not root:
            root = above
        while (above := self._root.get(node)) is not None and above is not root:
            self._root[node] = root
            node = above
        return root


def shared_outputs(graph: Graph) -> frozenset[tuple[int, str]]:
    """Which results may share memory with which input or constant: pairs of position and name."""
    storages = Storages(graph, track_views=True)
    roots = [(index, storages.root(value)) for index, value in enumerate(graph.outputs)]
    return frozenset(
        (index, root.name) for index, root in roots if root.op_type in (INPUT, CONSTANT)
    )
