"""The graph as passes see it; its nodes live in the native engine, `Node` and `Value` are handles.

Every change is an edit, journalled while a transaction is open: a failed pass is undone, and a
successful one repeated on the graph that this one mirrors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from bringup.errors import ExpiredHandleError, PassError, PassSkipException, first_line
from bringup.ir._engine import GraphCore
from bringup.ir.dialect import Dialect, current_dialect
from bringup.ir.edits import Edit, Journal
from bringup.ir.effects import later_writer
from bringup.ir.layouts import Expectation, settle
from bringup.ir.node import INPUT, Node, Value, as_called, map_argument, plain, values_in
from bringup.ir.operators import Operator
from bringup.ir.printing import graph_text, to_dot
from bringup.ir.protocols import Calls
from bringup.ir.sizes import computed_sizes
from bringup.ir.subgraphs import GraphTree
from bringup.ir.tensor import ConstantData, Shape, TensorDesc

_STRUCTURAL = "ir::"
"""Types in this namespace are no operators: no dialect is asked about them."""


_builder_over: Callable[[Graph, Node], Calls]


def use_builder(over: Callable[[Graph, Node], Calls]) -> None:
    """Set what makes a builder over a graph: the builder is above the graph."""
    global _builder_over
    _builder_over = over


class Graph(GraphTree):
    """An ordered, acyclic list of nodes that ends in one output node.

    Args:
        name: what reports call it.
        dialect: who knows the operators; without one, new nodes are neither checked nor shaped.

    Attributes:
        graph_id: a number that no other graph of the process has.
    """

    def __init__(self, name: str = "graph", dialect: Dialect | None = None) -> None:
        dialect = dialect if dialect is not None else current_dialect()
        self._begin(GraphCore(name), name, dialect)
        self._core.values_are_memory = _values_are_memory(dialect)

    @classmethod
    def of_core(cls, core: GraphCore, name: str, dialect: Dialect) -> Graph:
        """Return the face of a C++ program's graph, held by `core`, with `name` and `dialect`."""
        graph = cls.__new__(cls)
        graph._begin(core, name, dialect)
        return graph

    def _begin(self, core: GraphCore, name: str, dialect: Dialect | None) -> None:
        GraphTree.__init__(self)
        self.name = name
        self.dialect = dialect
        self._expired = False
        self._rule = ""
        self._relaid: dict[Node, None] = {}
        self._expected: dict[Expectation, None] = {}
        self._core = core
        self._core.attach(self)

    @property
    def core(self) -> GraphCore:
        """Return the graph of the native engine, for other parts of bringup that are native too."""
        self._live()
        return self._core

    # Reading

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Return all nodes in order, as they are now: editing while walking the tuple is safe."""
        self._live()
        return self._core.nodes()

    def get_direct_nodes(self) -> tuple[Node, ...]:
        """Return the nodes of this graph without those of its subgraphs, in order."""
        return self.nodes

    def get_all_nodes(self) -> tuple[Node, ...]:
        """Return the nodes of this graph, then those of its subgraphs at any depth."""
        below = [node for graph in self.get_all_subgraphs() for node in graph.get_all_nodes()]
        return (*self.nodes, *below)

    @property
    def inputs(self) -> tuple[Value, ...]:
        """Return the values the graph is called with."""
        self._live()
        return self._core.inputs()

    @property
    def output_node(self) -> Node:
        """Return the node that returns the graph's results."""
        self._live()
        return self._core.output_node()

    @property
    def outputs(self) -> tuple[Value, ...]:
        """Return every value that the graph returns, flattened."""
        return self.output_node.inputs

    def find(self, op_type: str) -> tuple[Node, ...]:
        """Return all nodes of type `op_type` in graph order, from an index: others cost nothing."""
        self._live()
        return self._core.find(op_type)

    def find_node_by_name(self, name: str) -> Node:
        """Return the node of this name; `KeyError` when there is none."""
        self._live()
        node = self._core.find_by_name(name)
        if node is None:
            raise KeyError(f"graph {self.name!r} has no node named {name!r}")
        return node

    def count(self, op_type: str) -> int:
        """Return how many nodes are of type `op_type`."""
        self._live()
        return self._core.count(op_type)

    def __len__(self) -> int:
        self._live()
        return self._core.size()

    def __str__(self) -> str:
        return graph_text(self)

    def to_dot(self) -> str:
        """Return the graph in the DOT language of Graphviz."""
        return to_dot(self)

    # Changing

    def add_input(self, name: str = "", meta: object = None) -> Value:
        """Return a new input, after those there are, called `name` (`input_` and its number by
        default); `meta` is the dialect's description of it, or None.
        """
        self._live()
        name = name or f"input_{self._core.count(INPUT)}"
        return self._core.add_input(name, meta).output

    def add_constant(
        self, payload: object, *, name: str = "constant", before: Node | None = None
    ) -> Value:
        """Return a new constant called `name` that holds `payload`, the dialect's or
        `ConstantData`, before the first node that computes (or `before`).
        """
        self._live()
        if before is not None:
            self._own(before)
        declared = None
        if isinstance(payload, ConstantData):
            declared = TensorDesc(Shape(payload.shape), payload.dtype)
            payload = payload if self.dialect is None else self.dialect.constant(payload)
        meta = self.dialect.constant_meta(payload) if self.dialect is not None else None
        node = self._core.add_constant(name, payload, meta, before)
        if declared is not None:
            node.meta["desc"] = declared
        return node.output

    def insert(
        self,
        op_type: str,
        arguments: tuple[object, ...],
        keywords: Mapping[str, object] = MappingProxyType({}),
        *,
        before: Node | None = None,
        output_count: int | None = None,
    ) -> Node:
        """Return a new node. With a dialect its overload, defaults and the shapes of its outputs
        are worked out now.

        Args:
            op_type: the operator, `"aten::add"` or with its overload, `"aten::add.Tensor"`.
            arguments: by position: values of this graph, or what the operator takes of the host.
            keywords: arguments by name.
            before: the node that it stands before; the graph's output by default.
            output_count: how many outputs, where the operator does not say.

        Raises `SchemaError` when the arguments do not fit the operator and `PassError` when its
        shape inference refuses them.
        """
        self._live()
        if self.dialect is None:
            operator, bound = Operator(op_type, output_count=output_count or 1), arguments
        else:
            operator, bound = self.dialect.bind(op_type, arguments, keywords)
            keywords = {}
            if output_count is not None and (operator.optional_outputs or not operator.parameters):
                operator = _with_outputs(operator, output_count)
        return self.insert_call(operator, bound, keywords, before=before, output_count=output_count)

    def insert_call(
        self,
        operator: Operator,
        arguments: tuple[object, ...],
        keywords: Mapping[str, object] = MappingProxyType({}),
        *,
        before: Node | None = None,
        output_count: int | None = None,
        instead_of: Value | None = None,
    ) -> Node:
        """Return the same as `insert` for an `operator` already looked up, all `arguments` in
        schema order.

        `keywords`, `before` and `output_count` are those of `insert`. `instead_of` is a value that
        the only output will stand for and that then goes.
        """
        if before is None:
            before = self.output_node
        else:
            self._own(before)
        arguments = computed_sizes(self, arguments, before)
        base = operator.type.partition("::")[2].partition(".")[0] or operator.type
        node = self._core.draft(operator, base, arguments, keywords)
        try:
            metas = self._metas_of(node, output_count, instead_of)
        except BaseException:
            self._core.discard(node)
            raise
        self._core.place(node, before, metas)
        return node

    def insert_as_is(
        self,
        operator: Operator,
        arguments: tuple[object, ...],
        metas: tuple[object, ...],
        name: str,
    ) -> Node:
        """Return a new last node called `name`, as a file has it: nothing is checked or inferred.

        `operator` is called with `arguments`, all of its parameters; `metas` has the description of
        every output, None where there is none.
        """
        node = self._core.draft(operator, name, arguments, MappingProxyType({}))
        self._core.place(node, self._core.output_node(), metas)
        return node

    def mirror(
        self,
        graph: object,
        node_type: type,
        getitem: object,
        reader: object,
        inherited: tuple[str, ...],
    ) -> GraphCore:
        """Fill this graph, which is empty, with the nodes of a torch.fx graph.

        Args:
            graph: has `nodes` of `node_type`, each with `op`, `target`, `args`, `kwargs`, `name`.
            getitem: the function that indexes a node with several outputs.
            reader: answers questions about nodes; see native/python/engine_fx.h.
            inherited: keys of a node's meta that are entries of `Node.meta` here too.

        Returns the engine's side, which keeps what stands for what.
        """
        self._live()
        self._core.read_fx(graph, node_type, getitem, reader, inherited)
        return self._core

    def inserting_before(self, node: Node) -> Calls:
        """Return a `GraphBuilder` whose operators become nodes of this graph before `node`."""
        self._own(node)
        return _builder_over(self, node)

    def replace_all_uses(self, old: object, new: object) -> None:
        """Let every reader of `old` (not `new`'s own node) read `new`, which may be a value or a
        holder.

        Raises `PassError` that names both when shape, dtype or device differ, and when something
        writes the memory of `new` behind both: what reads `old` would see what is written.
        """
        old_value, new_value = self._own_value(old), self._own_value(new)
        writer = later_writer(old_value, new_value)
        if writer is not None:
            raise PassError(
                f"{self._rule or 'the edit'} would replace {old_value!r} by {new_value!r}, whose "
                f"memory {writer.name!r} ({writer.op_type}) writes behind it: copy it (aten::clone)"
            )
        self.exchange_uses(old_value, new_value)

    def exchange_uses(self, old: Value, new: Value) -> None:
        """Let all readers of `old` read `new`, as `replace_all_uses` does, for values of which
        is known that nothing is written. Raises `PassError` as that does.
        """
        difference = self.why_not(old, new)
        if difference is not None:
            raise PassError(
                f"{self._rule or 'the edit'} would replace {old!r} ({old.node.op_type}) by "
                f"{new!r} ({new.node.op_type}): {difference}"
            )
        self._core.replace_all_uses(old, new)

    def set_argument(self, node: Node, name: str, argument: object) -> None:
        """Give the parameter `name` of `node` another argument; its outputs are shaped again."""
        self._own(node)
        arguments = list(node.arguments)
        arguments[node.operator.index_of(name)] = plain(argument)
        computed = computed_sizes(self, tuple(arguments), node)
        self._core.rewire(node, computed, node.keywords)
        self._relaid[node] = None

    def set_outputs(self, *outputs: object) -> None:
        """Set what the graph returns: values or holders, also nested in tuples, lists and dicts."""
        self._live()
        arguments = tuple([plain(output) for output in outputs])
        for argument in arguments:
            if isinstance(argument, Value):
                self._own(argument.node)
            else:
                for value in values_in(argument):
                    self._own(value.node)
        self._core.rewire(self._core.output_node(), arguments, {})

    def erase(self, node: Node) -> None:
        """Remove a node that nothing reads; `ValueError` naming a reader otherwise."""
        self._own(node)
        self._core.erase(node)

    def remove_node(self, node: Node) -> None:
        """Remove `node`: the same as `erase`, as GE calls it."""
        self.erase(node)

    def erase_dead(self, *candidates: Node) -> None:
        """Remove those of `candidates`, and what only they read, that are pure and unread."""
        self._live()
        self._core.erase_dead([node for node in candidates if self._core.owns(node)])

    def move_before(self, node: Node, before: Node) -> None:
        """Let `node` run just before `before`."""
        self._own(node)
        self._own(before)
        self._core.move_before(node, before)

    def add_control_edge(self, source: Node, target: Node) -> None:
        """Let `target` run after `source`, whether or not it reads anything of it.

        From an operator or input to an operator; `ValueError` otherwise. Adding it again does
        nothing. An edge against the order of the graph is allowed: see `ir.topological_sort`.
        """
        self._own(source)
        self._own(target)
        self._core.add_control_edge(source, target)

    def remove_control_edge(self, source: Node, target: Node) -> None:
        """Take the control edge from `source` to `target` out; `ValueError` when there is none."""
        self._own(source)
        self._own(target)
        self._core.remove_control_edge(source, target)

    @property
    def has_control_edges(self) -> bool:
        """Return whether there is any control edge."""
        self._live()
        return self._core.has_control_edges()

    def move_control_edges(
        self, old: Iterable[Node], new: Iterable[Node], results: Iterable[tuple[Value, Value]]
    ) -> None:
        """Let `new`, which stand for `old`, keep their place among the other nodes: they run after
        all that ran before a node of `old`, and before all that ran after one.

        To be called before `results`, pairs of an output of `old` and what will be read in its
        place, are exchanged: what reads one that no new node computes runs after the former itself.
        """
        self._live()
        pairs = list(results)
        outputs, now = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        self._core.move_control_edges(list(old), list(new), outputs, now)

    def topological_sort(self) -> tuple[Node, str] | None:
        """Move producers that come too late in front of their first reader; return the node that
        cannot have its inputs in time and why: then what was moved stays so.
        """
        self._live()
        return self._core.topological_sort()

    # Sessions

    @contextmanager
    def transaction(self, rule: str = "") -> Iterator[Journal]:
        """Collect every edit made in this block, and yield them; an exception undoes them all.

        `rule` is stamped on the nodes made in it. Transactions do not nest.

        Raises `RuntimeError` when one is open.
        """
        self._live()
        if self._journal is not None:
            raise RuntimeError(f"graph {self.name!r} is already being edited by {self._rule!r}")
        self._core.begin(rule)
        journal = Journal(self._core)
        self._journal, self._rule = journal, rule
        self._undo.clear()
        try:
            yield journal
            self.settle_layouts()
            journal.close(self._core.commit())
        except BaseException:
            self._core.rollback()
            journal.close(None)
            self._undo_since(0)
            raise
        finally:
            self._journal, self._rule = None, ""
            self._relaid.clear()
            self._expected.clear()
            self._undo.clear()

    @contextmanager
    def savepoint(self, undone: list[Edit] | None = None) -> Iterator[None]:
        """Let an exception undo the edits made in this block alone, inside a transaction.

        They are appended to `undone`.

        Raises `RuntimeError` outside of a transaction.
        """
        mark = self.mark()
        try:
            yield
        except BaseException:
            edits = self.roll_back_to(mark)
            if undone is not None:
                undone.extend(edits)
            raise

    def mark(self) -> tuple[int, int, int]:
        """Return the place in the open transaction for `roll_back_to`. Raises `RuntimeError`."""
        self._live()
        if self._journal is None:
            raise RuntimeError(
                f"graph {self.name!r} has no open transaction to make a savepoint in"
            )
        edits, metas = self._core.savepoint()
        return edits, metas, len(self._undo)

    def roll_back_to(self, mark: tuple[int, int, int]) -> list[Edit]:
        """Undo and return the edits since `mark`."""
        assert self._journal is not None, "a mark is of an open transaction"
        edits, metas, notes = mark
        undone = self._journal[edits:]
        self._core.rollback_to(edits, metas)
        self._undo_since(notes)
        return undone

    @property
    def is_edited(self) -> bool:
        """Return whether the open transaction has edits."""
        return bool(self._journal)

    def owns(self, node: Node | None) -> bool:
        """Return whether `node` is (still) a node of this graph."""
        return node is not None and self._core.owns(node)

    def bind(self, dialect: Dialect) -> None:
        """Look every node's operator up in `dialect`; for a graph that was built without one, or
        with one that knows schemas only.

        Raises `ValueError` when the graph is bound to another dialect.
        """
        self._live()
        if self.dialect is dialect:
            return
        if self.is_bound:
            assert self.dialect is not None
            raise ValueError(
                f"graph {self.name!r} is bound to the dialect {self.dialect.name!r} already"
            )
        for node in self._core.nodes():
            if isinstance(node.payload, ConstantData):
                node.payload = dialect.constant(node.payload)
            if not node.op_type.startswith(_STRUCTURAL):
                operator, arguments = dialect.bind(node.op_type, *as_called(node))
                self._core.set_operator(node, operator, arguments)
        if self.dialect is not None:  # what it said of values means nothing to the next
            for value in (value for node in self._core.nodes() for value in node.outputs):
                self._core.set_meta(value, None)
        self.dialect = dialect
        self._core.values_are_memory = _values_are_memory(dialect)
        self.shapes_pending = self.is_bound

    @property
    def is_bound(self) -> bool:
        """Return whether more is known of its operators than their schemas."""
        return self.dialect is not None and not self.dialect.provisional

    def expire(self) -> None:
        """End the life of all handles into this graph: using one raises `ExpiredHandleError`."""
        for subgraph, _ in self._subgraphs.values():
            subgraph.expire()
        self._expired = self._core.expired = True

    # Inside

    def _live(self) -> None:
        if self._expired:
            raise ExpiredHandleError(
                f"graph handle has expired: graph {self.name!r} belongs to a finished session"
            )

    def _own(self, node: Node) -> None:
        if node.graph is not self:
            raise ValueError(f"node {node.name!r} belongs to another graph than {self.name!r}")

    def _own_value(self, value: object) -> Value:
        value = plain(value)
        if not isinstance(value, Value):
            raise TypeError(f"expected a value or holder of graph {self.name!r}, got {value!r}")
        self._own(value.node)
        return value

    def _metas_of(
        self, node: Node, output_count: int | None, instead_of: Value | None = None
    ) -> tuple[object, ...]:
        """Return the dialect's description of each output of a new node, None where unknown."""
        declared = node.operator.output_count
        count = output_count if declared is None else declared
        if count is None and node.operator.optional_outputs:
            raise _unknown_count(node)
        if self.dialect is not None and self._core.can_be_shaped(node):
            try:
                return self.dialect.infer(node, instead_of)
            except PassSkipException:
                raise
            except Exception as error:
                raise PassError(
                    f"{node.op_type} cannot take these arguments: {first_line(error)} (in {node!r})"
                ) from error
        if count is None:
            raise _unknown_count(node)
        return (None,) * count

    def why_not(self, old: Value, new: Value) -> str | None:
        """Return why `new` cannot stand for `old`, or None; then strides are inferred again."""
        former, current = old.meta, new.meta
        if self.dialect is None or former is None or current is None or former is current:
            return None
        difference = self.dialect.difference(former, current)
        if difference is None and not self.dialect.same_layout(former, current):
            self._relaid.update(dict.fromkeys(old.users))
            expectation = Expectation.of(new, former, old)
            self._expected[expectation] = None
            self._remember(lambda: self._expected.pop(expectation, None))
        return difference

    def shape_again(self, node: Node) -> None:
        """Infer the outputs of a node that was made or changed without doing so. Raises
        `PassError`: the operator has another number of outputs than the node.
        """
        self._own(node)
        if any(value.meta is not None for value in node.outputs):
            self._relaid[node] = None
            return
        metas = self._metas_of(node, len(node.outputs))
        if len(metas) != len(node.outputs):
            raise PassError(
                f"{node.op_type} has {len(metas)} outputs here, {node.name!r} was made with "
                f"{len(node.outputs)}"
            )
        for value, meta in zip(node.outputs, metas, strict=True):
            self.set_meta(value, meta)

    def part_from(self, old: Value, new: Value) -> None:
        """Give `new`, which stands for `old`, a meta of its own if `old` did not go after all."""
        if self.dialect is not None and self.owns(old.node) and new.meta is old.meta:
            for value, meta in zip(new.node.outputs, self.dialect.infer(new.node), strict=True):
                self.set_meta(value, meta)

    def set_meta(self, value: Value, meta: object) -> None:
        """Let the dialect's description of `value` be `meta`; undone with the transaction."""
        self._own(value.node)
        former = value.meta
        self._core.set_meta(value, meta)
        self._remember(lambda: self._core.set_meta(value, former))

    def settle_layouts(self) -> None:
        """Infer again what reads a value whose strides changed, and let what depends on strides,
        the results among it, read a copy laid out as before.

        Raises `PassError` when a node can take neither.
        """
        relaid, self._relaid = self._relaid, {}
        expected, self._expected = self._expected, {}
        if self.dialect is not None and (relaid or expected):
            settle(self, self.dialect, relaid, expected, self._rule)

    def exchange(self, node: Node, values: Mapping[Value, Value]) -> None:
        """Let a node read other values, which are not looked at, where it reads some of these."""
        self._own(node)
        keywords = {name: map_argument(item, values) for name, item in node.keywords.items()}
        arguments = tuple(map_argument(item, values) for item in node.arguments)
        self._core.rewire(node, arguments, keywords)


def _values_are_memory(dialect: Dialect | None) -> bool:
    return dialect is None or not dialect.values_are_immutable


def _unknown_count(node: Node) -> ValueError:
    return ValueError(
        f"how many outputs {node.op_type} has depends on the call: pass outputs=<number>"
    )


def _with_outputs(operator: Operator, count: int) -> Operator:
    """Return the operator of a call with `count` outputs; raises `ValueError` without one."""
    least = operator.output_count or 1
    most = (operator.output_count or 0) + operator.optional_outputs
    if operator.parameters and not least <= count <= most:
        raise ValueError(f"{operator.type} has {least} to {most} outputs, got outputs={count}")
    return dataclasses.replace(operator, output_count=count, optional_outputs=0)
