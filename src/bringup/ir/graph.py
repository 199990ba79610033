"""Graph, node and value: the form in which passes see a computation, and every way to change it.

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
from bringup.ir.tensor import TensorDesc

if TYPE_CHECKING:
    from bringup.ir.builder import GraphBuilder

__all__ = [
    "CONSTANT",
    "INPUT",
    "OUTPUT",
    "Graph",
    "Node",
    "Value",
    "map_argument",
    "plain",
    "values_in",
]

INPUT = "ir::input"
CONSTANT = "ir::constant"
OUTPUT = "ir::output"
_STRUCTURE = {
    INPUT: Operator(INPUT),
    CONSTANT: Operator(CONSTANT),
    OUTPUT: Operator(OUTPUT, output_count=0),
}
_EXPIRED = "graph handle has expired"
_ORDER_STEP = 1024.0


def values_in(argument: object) -> Iterator[Value]:
    """Every value in an argument, which may be nested in tuples, lists, slices and dicts."""
    if isinstance(argument, Value):
        yield argument
    elif isinstance(argument, (tuple, list)):
        for item in argument:
            yield from values_in(item)
    elif isinstance(argument, dict):
        for item in argument.values():
            yield from values_in(item)
    elif isinstance(argument, slice):
        yield from values_in((argument.start, argument.stop, argument.step))


def map_argument(argument: object, replace: Mapping[Value, object]) -> object:
    """The argument with every value that `replace` knows exchanged."""
    if isinstance(argument, Value):
        return replace.get(argument, argument)
    if isinstance(argument, (tuple, list)):
        return tuple(map_argument(item, replace) for item in argument)
    if isinstance(argument, dict):
        return {key: map_argument(item, replace) for key, item in argument.items()}
    if isinstance(argument, slice):
        return slice(
            map_argument(argument.start, replace),
            map_argument(argument.stop, replace),
            map_argument(argument.step, replace),
        )
    return argument


class Value:
    """One output of one node. Identity is equality: the same node and output index is the same object."""

    __slots__ = ("_index", "_meta", "_node", "_uses")

    def __init__(self, node: Node, index: int, meta: object = None) -> None:
        self._node = node
        self._index = index
        self._meta = meta
        self._uses: dict[Node, int] = {}

    @property
    def node(self) -> Node:
        """The node that computes this value."""
        self._node._live()
        return self._node

    @property
    def index(self) -> int:
        """Which output of its node it is."""
        self._node._live()
        return self._index

    @property
    def name(self) -> str:
        """The name of the node, with `:index` when the node has several outputs."""
        node = self.node
        return node._name if len(node._outputs) == 1 else f"{node._name}:{self._index}"

    @property
    def meta(self) -> object:
        """The dialect's own description (for ATen a fake tensor or a symbolic integer), or None if unknown."""
        self._node._live()
        return self._meta

    @property
    def desc(self) -> TensorDesc | None:
        """Shape and dtype by value; None when unknown or when this is not a tensor."""
        graph = self._node._live()
        if self._meta is None or graph.dialect is None:
            return None
        return graph.dialect.describe(self._meta)

    @property
    def users(self) -> tuple[Node, ...]:
        """The nodes that read this value, each once, in graph order."""
        self._node._live()
        return tuple(sorted(self._uses, key=lambda node: node._order))

    def __repr__(self) -> str:
        if self._node._graph is None:
            return f"<value of an erased node {self._node._name}>"
        desc = self.desc
        return f"%{self.name}" if desc is None else f"%{self.name}: {desc}"


class Node:
    """One operation. Arguments stand in schema order; each is a value, a host value, or a tuple of them."""

    __slots__ = (
        "_arguments",
        "_graph",
        "_keywords",
        "_name",
        "_next",
        "_operator",
        "_order",
        "_outputs",
        "_previous",
        "handle",
        "meta",
        "payload",
    )

    def __init__(
        self,
        graph: Graph,
        name: str,
        operator: Operator,
        arguments: tuple[object, ...],
        keywords: Mapping[str, object],
    ) -> None:
        self._graph: Graph | None = graph
        self._name = name
        self._operator = operator
        self._arguments = arguments
        self._keywords = dict(keywords)
        self._outputs: tuple[Value, ...] = ()
        self._previous: Node | None = None
        self._next: Node | None = None
        self._order = 0.0
        self.meta: dict[str, object] = {}
        """Free for anyone: `rule` (the pass that made the node), `stack_trace`, `module` (the scope's path)."""
        self.handle: object = None
        """The node of the mirrored graph; None for a node that no other graph knows."""
        self.payload: object = None
        """The data of a constant that passes may fold; None otherwise."""

    def _live(self) -> Graph:
        graph = self._graph
        if graph is None:
            raise ExpiredHandleError(f"{_EXPIRED}: node {self._name!r} was erased")
        if graph._expired:
            raise ExpiredHandleError(
                f"{_EXPIRED}: node {self._name!r} belongs to a finished session"
            )
        return graph

    @property
    def graph(self) -> Graph:
        """The graph that owns this node."""
        return self._live()

    @property
    def name(self) -> str:
        """Unique in its graph."""
        self._live()
        return self._name

    @property
    def op_type(self) -> str:
        """For instance `aten::add.Tensor`, `aten::addmm`, `ir::input`, `ir::constant`, `ir::output`."""
        self._live()
        return self._operator.type

    @property
    def operator(self) -> Operator:
        """The operator's facts."""
        self._live()
        return self._operator

    @property
    def pure(self) -> bool:
        """Whether this call only computes its outputs: it may be moved, merged, folded or dropped."""
        graph = self._live()
        if not self._operator.random or self._operator.mutates or self._operator.opaque:
            return self._operator.pure
        return graph.dialect is not None and not graph.dialect.draws_random(self)

    @property
    def arguments(self) -> tuple[object, ...]:
        """All arguments in schema order."""
        self._live()
        return self._arguments

    @property
    def keywords(self) -> Mapping[str, object]:
        """Keyword arguments of an operation that has no schema; empty for operators."""
        self._live()
        return MappingProxyType(self._keywords)

    @property
    def inputs(self) -> tuple[Value, ...]:
        """Every value this node reads, in order; one that is read twice stands twice."""
        self._live()
        return tuple(self._reads())

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The values this node computes."""
        self._live()
        return self._outputs

    @property
    def output(self) -> Value:
        """The first output."""
        self._live()
        if not self._outputs:
            raise ValueError(f"node {self._name!r} ({self._operator.type}) has no output")
        return self._outputs[0]

    @property
    def users(self) -> tuple[Node, ...]:
        """The nodes that read any output, each once, in graph order."""
        self._live()
        found = {user for value in self._outputs for user in value._uses}
        return tuple(sorted(found, key=lambda node: node._order))

    @property
    def attributes(self) -> Mapping[str, object]:
        """The host arguments (those without a value in them) by schema name."""
        self._live()
        names = [parameter.name for parameter in self._operator.parameters]
        found = {
            name: argument
            for name, argument in zip(names, self._arguments, strict=False)
            if next(values_in(argument), None) is None
        }
        return MappingProxyType(found)

    def argument(self, name: str) -> object:
        """The argument of this schema name; `KeyError` that lists the names when there is none."""
        self._live()
        return self._arguments[self._operator.index_of(name)]

    def is_before(self, other: Node) -> bool:
        """Whether this node runs before `other`."""
        self._live()
        return self._order < other._order

    def _reads(self) -> Iterator[Value]:
        yield from values_in(self._arguments)
        if self._keywords:
            yield from values_in(self._keywords)

    def __repr__(self) -> str:
        from bringup.ir.printing import node_text

        return f"<erased node {self._name}>" if self._graph is None else node_text(self)


class Graph:
    """An ordered, acyclic list of nodes that ends in one output node.

    Arguments:
        name: what reports call it.
        dialect: who knows the operators; without one, new nodes are neither checked nor shaped.
    """

    def __init__(self, name: str = "graph", dialect: Dialect | None = None) -> None:
        self.name = name
        self.dialect = dialect if dialect is not None else current_dialect()
        self._expired = False
        self._names: dict[str, Node] = {}
        self._suffixes: dict[str, int] = {}
        self._by_type: dict[str, dict[Node, None]] = {}
        self._journal: list[Edit] | None = None
        self._rule = ""
        self._relaid: dict[Node, None] = {}
        self._former_metas: list[tuple[Value, object]] = []
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

    # Changing

    def add_input(self, name: str = "", meta: object = None) -> Value:
        """A new input, after those there are."""
        existing = self.find(INPUT)
        before = existing[-1]._next if existing else self._first
        assert before is not None
        node = self._make(name or f"input_{len(existing)}", _STRUCTURE[INPUT])
        node._outputs = (Value(node, 0, meta),)
        self._apply(Insert(node, before))
        return node._outputs[0]

    def add_constant(
        self, payload: object, *, name: str = "constant", before: Node | None = None
    ) -> Value:
        """A new constant holding `payload`, placed before the first node that computes (or `before`)."""
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
        self._apply(Insert(node, before))
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
        """The same for an operator that is looked up already, with all arguments in schema order."""
        before = before or self._output
        self._own(before)
        base = operator.type.partition("::")[2].partition(".")[0] or operator.type
        node = self._make(base, operator, arguments, keywords)
        self._shape_outputs(node, output_count)
        self._apply(Insert(node, before))
        return node

    def adopt(
        self,
        name: str,
        operator: Operator,
        arguments: tuple[object, ...],
        keywords: Mapping[str, object],
        metas: tuple[object, ...],
    ) -> Node:
        """Append a node as it is, its arguments in schema order already: how another graph is mirrored."""
        node = self._make(name, operator, arguments, keywords)
        node._outputs = tuple(Value(node, index, meta) for index, meta in enumerate(metas))
        self._apply(Insert(node, self._output))
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
        """Give the parameter `name` of `node` another argument; the node's outputs are shaped again."""
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
        self._apply(Erase(node, node._next))

    def erase_dead(self, *candidates: Node) -> None:
        """Remove those of `candidates`, and of what only they read, that are pure and have no reader."""
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
        try:
            yield journal
            self.settle_layouts()
        except BaseException:
            self._journal = None
            for edit in reversed(journal):
                self._perform(edit.inverse())
            for value, meta in reversed(self._former_metas):
                value._meta = meta
            raise
        finally:
            self._journal, self._rule = None, ""
            self._relaid.clear()
            self._former_metas.clear()

    @property
    def is_edited(self) -> bool:
        """Whether the open transaction has edits."""
        return bool(self._journal)

    def owns(self, node: Node) -> bool:
        """Whether `node` is (still) a node of this graph."""
        return node._graph is self

    def bind(self, dialect: Dialect) -> None:
        """Look every node's operator up in `dialect`; for a graph that was built without one."""
        self._live()
        if self.dialect is not None:
            raise ValueError(
                f"graph {self.name!r} is bound to the dialect {self.dialect.name!r} already"
            )
        for node in self._walk():
            if node._operator.type in _STRUCTURE:
                continue
            operator, arguments = dialect.bind(node._operator.type, node._arguments, node._keywords)
            del self._by_type[node._operator.type][node]
            node._operator, node._arguments, node._keywords = operator, arguments, {}
            self._by_type.setdefault(operator.type, {})[node] = None
        self.dialect = dialect

    def expire(self) -> None:
        """End the life of every handle into this graph: using one raises `ExpiredHandleError` from now on."""
        self._expired = True

    # Inside

    def _live(self) -> None:
        if self._expired:
            raise ExpiredHandleError(
                f"{_EXPIRED}: graph {self.name!r} belongs to a finished session"
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
                    f"{node._operator.type} cannot take these arguments: {error} (in {node!r})"
                ) from error
        else:
            count = (
                output_count if node._operator.output_count is None else node._operator.output_count
            )
            if count is None:
                raise ValueError(
                    f"how many outputs {node._operator.type} has depends on the call: pass outputs=<number>"
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
                    f"after {self._rule or 'the edit'}, {node!r} cannot take its inputs any more: {error}"
                ) from error
            for value, meta in zip(node._outputs, metas, strict=True):
                difference = self.dialect.difference(value._meta, meta)
                if difference is not None:
                    raise PassError(
                        f"after {self._rule or 'the edit'}, {node!r} changes: {difference}"
                    )
                if not self.dialect.same_layout(value._meta, meta):
                    agenda.update(dict.fromkeys(value._uses))
                self._former_metas.append((value, value._meta))
                value._meta = meta

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


def plain(argument: object) -> object:
    """The argument with holders exchanged for the values they hold."""
    if isinstance(argument, (tuple, list)):
        return tuple(plain(item) for item in argument)
    return getattr(argument, "_held_value", argument)
