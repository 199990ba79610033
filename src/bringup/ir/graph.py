"""The graph: the form in which passes see a computation, and every way to change it.

Every change goes through four edits (insert, rewire, erase, move), which are journalled while a
transaction is open: so a failed pass is undone, and a successful one can be repeated on the graph
this one mirrors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING

from bringup.errors import ExpiredHandleError, PassError
from bringup.ir.dialect import Dialect, Operator, current_dialect
from bringup.ir.edits import Edit, Erase, Insert, Move, Rewire
from bringup.ir.node import CONSTANT, INPUT, OUTPUT, Node, Value, map_argument, plain, values_in
from bringup.ir.tree import GraphTree

if TYPE_CHECKING:
    from bringup.ir.builder import GraphBuilder

__all__ = ["Graph"]

_STRUCTURE = {
    INPUT: Operator(INPUT),
    CONSTANT: Operator(CONSTANT),
    OUTPUT: Operator(OUTPUT, output_count=0),
}
_STRUCTURAL = "ir::"
"""Types in this namespace are no operators: no dialect is asked about them."""
_ORDER_STEP = 1024.0


class Graph(GraphTree):
    """An ordered, acyclic list of nodes that ends in one output node.

    Arguments:
        name: what reports call it.
        dialect: who knows the operators; without one, new nodes are neither checked nor shaped.
    """

    def __init__(self, name: str = "graph", dialect: Dialect | None = None) -> None:
        super().__init__()
        self.name = name
        self.dialect = dialect if dialect is not None else current_dialect()
        self._expired = False
        self._names: dict[str, Node] = {}
        self._suffixes: dict[str, int] = {}
        self._by_type: dict[str, dict[Node, None]] = {}
        self._rule = ""
        self._relaid: dict[Node, None] = {}
        self._output = Node(self, "output", _STRUCTURE[OUTPUT], (), {})
        self._output._order = _ORDER_STEP
        self._first: Node = self._output
        self._register(self._output)

    # Reading

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes in order, as they are now: editing while walking the tuple is safe."""
        self._live()
        return tuple(self._walk())

    def get_direct_nodes(self) -> tuple[Node, ...]:
        """The nodes of this graph without those of its subgraphs, in order."""
        return self.nodes

    def get_all_nodes(self) -> tuple[Node, ...]:
        """The nodes of this graph, then those of its subgraphs at any depth."""
        below = [node for graph in self.get_all_subgraphs() for node in graph.get_all_nodes()]
        return (*self.nodes, *below)

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values the graph is called with."""
        return tuple(node._outputs[0] for node in self.find(INPUT))

    @property
    def output_node(self) -> Node:
        """The node that returns the graph's results."""
        self._live()
        return self._output

    @property
    def outputs(self) -> tuple[Value, ...]:
        """Every value that the graph returns, flattened."""
        self._live()
        return tuple(self._output._reads())

    def find(self, op_type: str) -> tuple[Node, ...]:
        """All nodes of one type in graph order. Indexed: costs nothing per node of another type."""
        self._live()
        return tuple(sorted(self._by_type.get(op_type, ()), key=lambda node: node._order))

    def find_node_by_name(self, name: str) -> Node:
        """The node of this name; `KeyError` when there is none."""
        self._live()
        node = self._names.get(name)
        if node is None:
            raise KeyError(f"graph {self.name!r} has no node named {name!r}")
        return node

    def count(self, op_type: str) -> int:
        """How many nodes are of this type."""
        self._live()
        return len(self._by_type.get(op_type, ()))

    def __len__(self) -> int:
        self._live()
        return len(self._names)

    def __str__(self) -> str:
        from bringup.ir.printing import graph_text

        return graph_text(self)

    def to_dot(self) -> str:
        """The graph in the DOT language of Graphviz."""
        from bringup.ir.printing import to_dot

        return to_dot(self)

    # Changing

    def add_input(self, name: str = "", meta: object = None) -> Value:
        """A new input, after those there are."""
        existing = self.find(INPUT)
        before = existing[-1]._next if existing else self._first
        assert before is not None
        node = self._make(name or f"input_{len(existing)}", _STRUCTURE[INPUT])
        node._outputs = (Value(node, 0, meta),)
        self._apply(Insert(node, before, node._arguments, node._keywords))
        return node._outputs[0]

    def add_constant(
        self, payload: object, *, name: str = "constant", before: Node | None = None
    ) -> Value:
        """A new constant holding `payload`, before the first node that computes (or `before`)."""
        self._live()
        if before is None:
            before = next(
                node for node in self._walk() if node._operator.type not in (INPUT, CONSTANT)
            )
        self._own(before)
        node = self._make(name, _STRUCTURE[CONSTANT])
        node.payload = payload
        meta = self.dialect.constant_meta(payload) if self.dialect is not None else None
        node._outputs = (Value(node, 0, meta),)
        self._apply(Insert(node, before, node._arguments, node._keywords))
        return node._outputs[0]

    def insert(
        self,
        op_type: str,
        arguments: tuple[object, ...],
        keywords: Mapping[str, object] = MappingProxyType({}),
        *,
        before: Node | None = None,
        output_count: int | None = None,
    ) -> Node:
        """A new node. With a dialect its overload, defaults and the shapes of its outputs are
        worked out now.

        Raises `SchemaError` when the arguments do not fit the operator and `PassError` when its
        shape inference refuses them.
        """
        self._live()
        if self.dialect is None:
            operator, bound = Operator(op_type, output_count=output_count or 1), arguments
        else:
            operator, bound = self.dialect.bind(op_type, arguments, keywords)
            keywords = {}
        return self.insert_call(operator, bound, keywords, before=before, output_count=output_count)

    def insert_call(
        self,
        operator: Operator,
        arguments: tuple[object, ...],
        keywords: Mapping[str, object] = MappingProxyType({}),
        *,
        before: Node | None = None,
        output_count: int | None = None,
    ) -> Node:
        """The same for an operator already looked up, all arguments in schema order."""
        before = before or self._output
        self._own(before)
        base = operator.type.partition("::")[2].partition(".")[0] or operator.type
        node = self._make(base, operator, arguments, keywords)
        self._shape_outputs(node, output_count)
        self._apply(Insert(node, before, node._arguments, node._keywords))
        return node

    def adopt(
        self,
        name: str,
        operator: Operator,
        arguments: tuple[object, ...],
        keywords: Mapping[str, object],
        metas: tuple[object, ...],
    ) -> Node:
        """Append a node as it is: how another graph is mirrored."""
        node = self._make(name, operator, arguments, keywords)
        node._outputs = tuple(Value(node, index, meta) for index, meta in enumerate(metas))
        self._apply(Insert(node, self._output, node._arguments, node._keywords))
        return node

    def inserting_before(self, node: Node) -> GraphBuilder:
        """A builder whose operators become nodes of this graph, placed before `node`."""
        from bringup.ir.builder import GraphBuilder

        self._own(node)
        return GraphBuilder.over(self, node)

    def replace_all_uses(self, old: object, new: object) -> None:
        """Let every reader of `old` (not `new`'s own node) read `new`, which may be a value or a
        holder.

        Raises `PassError` that names both when shape, dtype or device differ.
        """
        old_value, new_value = self._own_value(old), self._own_value(new)
        self._check_replacement(old_value, new_value)
        for user in old_value.users:
            if user is not new_value._node:
                self._rewire(user, {old_value: new_value})

    def set_argument(self, node: Node, name: str, argument: object) -> None:
        """Give the parameter `name` of `node` another argument; its outputs are shaped again."""
        self._own(node)
        index = node._operator.index_of(name)
        arguments = list(node._arguments)
        arguments[index] = plain(argument)
        self._apply(Rewire(node, node._arguments, tuple(arguments), node._keywords, node._keywords))
        self._relaid[node] = None

    def set_outputs(self, *outputs: object) -> None:
        """What the graph returns: values or holders, also nested in tuples, lists and dicts."""
        arguments = tuple(plain(output) for output in outputs)
        for value in values_in(arguments):
            self._own_value(value)
        self._apply(Rewire(self._output, self._output._arguments, arguments, {}, {}))

    def erase(self, node: Node) -> None:
        """Remove a node that nobody reads; `ValueError` naming a reader otherwise."""
        self._own(node)
        if node is self._output:
            raise ValueError("the output node of a graph cannot be erased")
        if node.users:
            raise ValueError(
                f"node {node._name!r} cannot be erased: {node.users[0]._name!r} still reads it; "
                "replace its uses first"
            )
        assert node._next is not None
        self._apply(Erase(node, node._next, node._arguments, node._keywords))

    def erase_dead(self, *candidates: Node) -> None:
        """Remove those of `candidates`, and what only they read, that are pure and unread."""
        agenda = [node for node in candidates if node._graph is self]
        while agenda:
            node = agenda.pop()
            if node._graph is not self or node.users or node is self._output:
                continue
            if not node.pure or node._operator.type == INPUT:
                continue
            producers = [value._node for value in node._reads()]
            self.erase(node)
            agenda.extend(producers)

    def move_before(self, node: Node, before: Node) -> None:
        """Let `node` run just before `before`."""
        self._own(node)
        self._own(before)
        if node._next is not before and node is not before:
            assert node._next is not None
            self._apply(Move(node, node._next, before))

    # Sessions

    @contextmanager
    def transaction(self, rule: str = "") -> Iterator[list[Edit]]:
        """Collect every edit made in this block; an exception undoes them all.

        `rule` is stamped on the nodes made meanwhile. Transactions do not nest.
        """
        self._live()
        if self._journal is not None:
            raise RuntimeError(f"graph {self.name!r} is already being edited by {self._rule!r}")
        journal: list[Edit] = []
        self._journal, self._rule = journal, rule
        self._undo.clear()
        try:
            yield journal
            self.settle_layouts()
        except BaseException:
            self._take_back(journal, 0, 0)
            raise
        finally:
            self._journal, self._rule = None, ""
            self._relaid.clear()
            self._undo.clear()

    @contextmanager
    def savepoint(self, undone: list[Edit] | None = None) -> Iterator[None]:
        """Inside a transaction: an exception undoes the edits made in this block alone.

        They are appended to `undone`.
        """
        self._live()
        journal = self._journal
        if journal is None:
            raise RuntimeError(
                f"graph {self.name!r} has no open transaction to make a savepoint in"
            )
        edits, notes = len(journal), len(self._undo)
        try:
            yield
        except BaseException:
            if undone is not None:
                undone.extend(journal[edits:])
            self._take_back(journal, edits, notes)
            raise

    def _take_back(self, journal: list[Edit], edits: int, notes: int) -> None:
        for edit in reversed(journal[edits:]):
            self._perform(edit.inverse())
        del journal[edits:]
        self._undo_since(notes)

    @property
    def is_edited(self) -> bool:
        """Whether the open transaction has edits."""
        return bool(self._journal)

    def owns(self, node: Node | None) -> bool:
        """Whether `node` is (still) a node of this graph."""
        return node is not None and node._graph is self

    def bind(self, dialect: Dialect) -> None:
        """Look every node's operator up in `dialect`; for a graph that was built without one."""
        self._live()
        if self.dialect is not None:
            raise ValueError(
                f"graph {self.name!r} is bound to the dialect {self.dialect.name!r} already"
            )
        for node in self._walk():
            if node._operator.type.startswith(_STRUCTURAL):
                continue
            operator, arguments = dialect.bind(node._operator.type, node._arguments, node._keywords)
            del self._by_type[node._operator.type][node]
            node._operator, node._arguments, node._keywords = operator, arguments, {}
            self._by_type.setdefault(operator.type, {})[node] = None
        self.dialect = dialect

    def expire(self) -> None:
        """End the life of all handles into this graph: using one raises `ExpiredHandleError`."""
        for subgraph, _ in self._subgraphs.values():
            subgraph.expire()
        self._expired = True

    # Inside

    def _live(self) -> None:
        if self._expired:
            raise ExpiredHandleError(
                f"graph handle has expired: graph {self.name!r} belongs to a finished session"
            )

    def _own(self, node: Node) -> None:
        if node._live() is not self:
            raise ValueError(f"node {node._name!r} belongs to another graph than {self.name!r}")

    def _own_value(self, value: object) -> Value:
        value = plain(value)
        if not isinstance(value, Value):
            raise TypeError(f"expected a value or holder of graph {self.name!r}, got {value!r}")
        self._own(value._node)
        return value

    def _walk(self) -> Iterator[Node]:
        node: Node | None = self._first
        while node is not None:
            following = node._next
            yield node
            node = following

    def _make(
        self,
        base: str,
        operator: Operator,
        arguments: tuple[object, ...] = (),
        keywords: Mapping[str, object] = MappingProxyType({}),
    ) -> Node:
        self._live()
        node = Node(self, self._unique(base), operator, arguments, keywords)
        if self._rule:
            node.meta["rule"] = self._rule
        return node

    def _unique(self, base: str) -> str:
        name = base
        while name in self._names:
            self._suffixes[base] = self._suffixes.get(base, 0) + 1
            name = f"{base}_{self._suffixes[base]}"
        return name

    def _shape_outputs(self, node: Node, output_count: int | None) -> None:
        known = all(value._meta is not None for value in node._reads())
        metas: tuple[object, ...]
        if self.dialect is not None and known and self._has_metas():
            try:
                metas = self.dialect.infer(node)
            except Exception as error:
                raise PassError(
                    f"{node._operator.type} cannot take these arguments: {_first_line(error)} "
                    f"(in {node!r})"
                ) from error
        else:
            count = (
                output_count if node._operator.output_count is None else node._operator.output_count
            )
            if count is None:
                raise ValueError(
                    f"how many outputs {node._operator.type} has depends on the call: "
                    "pass outputs=<number>"
                )
            metas = (None,) * count
        node._outputs = tuple(Value(node, index, meta) for index, meta in enumerate(metas))

    def _has_metas(self) -> bool:
        inputs = self._by_type.get(INPUT, ())
        return all(node._outputs[0]._meta is not None for node in inputs)

    def _check_replacement(self, old: Value, new: Value) -> None:
        if self.dialect is None or old._meta is None or new._meta is None:
            return
        difference = self.dialect.difference(old._meta, new._meta)
        if difference is not None:
            raise PassError(
                f"{self._rule or 'the edit'} would replace {old!r} ({old._node._operator.type}) by "
                f"{new!r} ({new._node._operator.type}): {difference}"
            )
        if not self.dialect.same_layout(old._meta, new._meta):
            self._relaid.update(dict.fromkeys(old._uses))

    def set_meta(self, value: Value, meta: object) -> None:
        """Let the dialect's description of a value be this one; undone with the transaction."""
        self._own(value._node)
        former = value._meta
        value._meta = meta

        def restore() -> None:
            value._meta = former

        self._remember(restore)

    def settle_layouts(self) -> None:
        """Infer again what reads a value whose strides changed, until nothing changes any more."""
        agenda = self._relaid
        while agenda and self.dialect is not None:
            node = min(agenda, key=lambda item: item._order)
            del agenda[node]
            if node._graph is not self or not node._operator.parameters:
                continue
            try:
                metas = self.dialect.infer(node)
            except Exception as error:
                raise PassError(
                    f"after {self._rule or 'the edit'}, {node!r} cannot take its inputs: "
                    f"{_first_line(error)}"
                ) from error
            for value, meta in zip(node._outputs, metas, strict=True):
                difference = self.dialect.difference(value._meta, meta)
                if difference is not None:
                    raise PassError(
                        f"after {self._rule or 'the edit'}, {node!r} changes: {difference}"
                    )
                if not self.dialect.same_layout(value._meta, meta):
                    agenda.update(dict.fromkeys(value._uses))
                self.set_meta(value, meta)

    def _rewire(self, node: Node, replace: Mapping[Value, object]) -> None:
        arguments = tuple(map_argument(argument, replace) for argument in node._arguments)
        keywords = {name: map_argument(item, replace) for name, item in node._keywords.items()}
        self._apply(Rewire(node, node._arguments, arguments, node._keywords, keywords))

    def _apply(self, edit: Edit) -> None:
        self._live()
        self._perform(edit)
        if self._journal is not None:
            self._journal.append(edit)

    def _perform(self, edit: Edit) -> None:
        if isinstance(edit, Insert):
            edit.node._graph = self
            edit.node._arguments, edit.node._keywords = edit.arguments, dict(edit.keywords)
            self._link(edit.node, edit.before)
            self._register(edit.node)
            self._count_uses(edit.node, +1)
        elif isinstance(edit, Erase):
            self._count_uses(edit.node, -1)
            self._unregister(edit.node)
            self._unlink(edit.node)
            edit.node._graph = None
        elif isinstance(edit, Move):
            self._unlink(edit.node)
            self._link(edit.node, edit.before)
        else:
            self._count_uses(edit.node, -1)
            edit.node._arguments, edit.node._keywords = edit.arguments, dict(edit.keywords)
            self._count_uses(edit.node, +1)

    def _register(self, node: Node) -> None:
        self._names[node._name] = node
        self._by_type.setdefault(node._operator.type, {})[node] = None

    def _unregister(self, node: Node) -> None:
        del self._names[node._name]
        del self._by_type[node._operator.type][node]

    def _count_uses(self, node: Node, step: int) -> None:
        for value in node._reads():
            if value._node._graph is not self:
                continue  # a replacement may name values of the graph it will be placed in
            count = value._uses.get(node, 0) + step
            if count:
                value._uses[node] = count
            else:
                del value._uses[node]

    def _link(self, node: Node, before: Node) -> None:
        previous = before._previous
        node._previous, node._next, before._previous = previous, before, node
        if previous is None:
            self._first = node
            node._order = before._order - _ORDER_STEP
        else:
            previous._next = node
            node._order = (previous._order + before._order) / 2
            if not previous._order < node._order < before._order:
                self._renumber()
        if before is self._output:
            before._order = node._order + 2 * _ORDER_STEP

    def _unlink(self, node: Node) -> None:
        if node._previous is None:
            assert node._next is not None
            self._first = node._next
        else:
            node._previous._next = node._next
        if node._next is not None:
            node._next._previous = node._previous
        node._previous = node._next = None

    def _renumber(self) -> None:
        for number, node in enumerate(self._walk(), start=1):
            node._order = number * _ORDER_STEP


def _first_line(error: Exception) -> str:
    """What an operator says; the rest of torch's messages is for those who build torch."""
    return str(error).partition("\n")[0]
