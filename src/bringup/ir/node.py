"""Node and value: one operation of a graph, and one of its results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from bringup.errors import ExpiredHandleError, PassError
from bringup.ir.dialect import Operator
from bringup.ir.tensor import TensorDesc

if TYPE_CHECKING:
    from bringup.ir.anchors import InAnchor, OutAnchor
    from bringup.ir.graph import Graph

__all__ = [
    "CONSTANT",
    "INPUT",
    "ONE_OF",
    "OUTPUT",
    "Node",
    "Value",
    "map_argument",
    "plain",
    "values_in",
]

INPUT = "ir::input"
CONSTANT = "ir::constant"
OUTPUT = "ir::output"
ONE_OF = "ir::one_of"
"""Only in patterns: stands for any one of its arguments."""
_EXPIRED = "graph handle has expired"


def plain(argument: object) -> object:
    """The argument with holders exchanged for the values they hold."""
    if isinstance(argument, (tuple, list)):
        return tuple(plain(item) for item in argument)
    return getattr(argument, "_held_value", argument)


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
    """One output of one node. Identity is equality."""

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
        """The dialect's own description (for ATen a fake tensor or SymInt); None if unknown."""
        self._node._live()
        return self._meta

    @property
    def desc(self) -> TensorDesc | None:
        """Shape and dtype by value; None when unknown or when this is not a tensor.

        Raises `PassError` in a pass that runs before shapes are inferred, where this one will be.
        """
        graph = self._node._live()
        found = self.known_desc
        if found is None and graph.withholds_shapes and self._node._operator.type != INPUT:
            raise PassError(
                f"the shape of {self.name!r} is not inferred yet: register the pass for "
                "AFTER_INFER_SHAPE or later"
            )
        return found

    @property
    def known_desc(self) -> TensorDesc | None:
        """The same, but None also where shapes are not inferred yet; of an input, what it was
        declared with.
        """
        graph = self._node._live()
        if self._meta is None or graph.dialect is None:
            declared = self._node.meta.get("desc")
            return declared if isinstance(declared, TensorDesc) else None
        return graph.dialect.describe(self._meta)

    @property
    def users(self) -> tuple[Node, ...]:
        """The nodes that read this value, each once, in graph order."""
        self._node._live()
        return tuple(sorted(self._uses, key=lambda node: node._order))

    def __repr__(self) -> str:
        if self._node._graph is None:
            return f"<value of an erased node {self._node._name}>"
        desc = self.known_desc
        return f"%{self.name}" if desc is None else f"%{self.name}: {desc}"


class Node:
    """One operation.

    Its arguments stand in schema order; each is a value, a host value, or a tuple of these.
    """

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
        """Free for anyone; `rule` is the pass that made the node, `stack_trace` the user's line."""
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
        """For instance `aten::add.Tensor`, `aten::addmm`, `ir::input`, `ir::constant`."""
        self._live()
        return self._operator.type

    @property
    def operator(self) -> Operator:
        """The operator's facts."""
        self._live()
        return self._operator

    @property
    def pure(self) -> bool:
        """Whether this call only computes its outputs: it may be moved, folded or dropped."""
        graph, operator = self._live(), self._operator
        if operator.pure or not operator.random:
            return operator.pure
        idle = graph.dialect is not None and not graph.dialect.draws_random(self)
        return idle and not (operator.mutates or operator.kept or operator.opaque)

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

    def has_attr(self, name: str) -> bool:
        """Whether there is a parameter or an attribute of this name."""
        self._live()
        named = any(parameter.name == name for parameter in self._operator.parameters)
        return named or name in self._free_attributes()

    def get_attr(self, name: str) -> object:
        """The argument of this schema name, else the attribute that was set; `KeyError` that lists
        both when there is none.
        """
        self._live()
        if name in self._free_attributes():
            return self._free_attributes()[name]
        if not self.has_attr(name):
            known = [parameter.name for parameter in self._operator.parameters]
            raise KeyError(
                f"node {self._name!r} ({self._operator.type}) has no attribute {name!r}; it has "
                f"{[*known, *self._free_attributes()]}"
            )
        return self.argument(name)

    def set_attr(self, name: str, value: object) -> None:
        """Give the parameter of this schema name another argument; any other name is kept with the
        node. Undone with the transaction.
        """
        graph = self._live()
        if any(parameter.name == name for parameter in self._operator.parameters):
            graph.set_argument(self, name, value)
            return
        if "attributes" not in self.meta:
            graph.set_entry(self.meta, "attributes", {})
        graph.set_entry(self._free_attributes(), name, value)

    def _free_attributes(self) -> dict[str, object]:
        found = self.meta.get("attributes")
        return found if isinstance(found, dict) else {}

    def get_all_in_anchors(self) -> tuple[InAnchor, ...]:
        """The inputs of this node."""
        from bringup.ir.anchors import in_anchors

        return in_anchors(self)

    def get_all_out_anchors(self) -> tuple[OutAnchor, ...]:
        """The outputs of this node."""
        from bringup.ir.anchors import out_anchors

        return out_anchors(self)

    def get_in_data_nodes(self) -> tuple[Node, ...]:
        """The nodes whose values this one reads, each once."""
        return tuple(dict.fromkeys(value.node for value in self.inputs))

    def get_out_data_nodes(self) -> tuple[Node, ...]:
        """The nodes that read a value of this one, each once, in graph order."""
        return self.users

    def get_in_control_nodes(self) -> tuple[Node, ...]:
        """The nodes that must run before this one, for the sake of memory they both use."""
        from bringup.ir.anchors import control_inputs

        return control_inputs(self)

    def get_out_control_nodes(self) -> tuple[Node, ...]:
        """The nodes that must run after this one, for the sake of memory they both use."""
        from bringup.ir.anchors import control_outputs

        return control_outputs(self)

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
