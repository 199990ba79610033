"""Who shares memory with whom, and who writes it: what may not be moved across what."""

from __future__ import annotations

from typing import Protocol

from bringup.ir._engine import AliasAnalysisCore, GraphCore, NodeBase, ValueBase


class _Graph(Protocol):
    _core: GraphCore


class AliasAnalysis:
    """The storage classes of a graph's values, and the nodes that write each.

    Built once per pass; a graph without writers or opaque nodes (nearly every graph that AOT
    autograd makes) costs one walk over its operators and answers at once.

    Args:
        graph: looked at once; `record` and `replaced` follow its edits, `rebuild` looks again.
        track_views: whether views are known by what they look at, also in a quiet graph.
    """

    def __init__(self, graph: _Graph, *, track_views: bool = False) -> None:
        self.core = AliasAnalysisCore(graph._core, track_views)

    def rebuild(self) -> None:
        """Forget everything and look at the graph again: for when edits of it were undone."""
        self.core.rebuild()

    @property
    def quiet(self) -> bool:
        """Return whether nothing in the graph is known to write memory."""
        return self.core.quiet

    def root(self, value: ValueBase) -> NodeBase:
        """Return the node that stands for the storage of `value`, if views count or not quiet."""
        return self.core.root(value)

    def writer_between(self, value: ValueBase, first: NodeBase, last: NodeBase) -> NodeBase | None:
        """Return a node from `first` on and before `last` that may write the memory of `value`."""
        return self.core.writer_between(value, first, last)

    def writer_of(self, value: ValueBase) -> NodeBase | None:
        """Return any node that may write the memory of `value`, wherever it stands."""
        return self.core.writer_of(value)

    def replaced(self, old: ValueBase, new: ValueBase) -> None:
        """Count `new`, which stands where `old` stood, as the same storage from now on."""
        self.core.replaced(old, new)

    def record(self, node: NodeBase) -> None:
        """Take one more node into account."""
        self.core.record(node)


def later_writer(old: ValueBase, new: ValueBase) -> NodeBase | None:
    """Return the writer of `new` behind both that readers of `old` would see if they read `new`."""
    graph = old.graph
    aliases = AliasAnalysis(graph)
    if aliases.quiet or aliases.root(old) is aliases.root(new):
        return None
    later = old.node if new.node.is_before(old.node) else new.node
    following = later.next
    return None if following is None else aliases.writer_between(new, following, graph.output_node)
