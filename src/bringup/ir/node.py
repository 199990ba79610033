"""Node and value: an operation and its results; where values come in and go out; their text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from bringup.errors import PassError
from bringup.ir._engine import NodeBase, ValueBase, use_ir_types
from bringup.ir.effects import AliasAnalysis
from bringup.ir.operators import Operator, Parameter
from bringup.ir.symbolic import Dim, SymbolicDim
from bringup.ir.tensor import TensorDesc

INPUT = "ir::input"
CONSTANT = "ir::constant"
OUTPUT = "ir::output"
ONE_OF = "ir::one_of"
"""Only in patterns: stands for any one of its arguments."""


def plain(argument: object) -> object:
    if isinstance(argument, (tuple, list)):
        return tuple(plain(item) for item in argument)
    return getattr(argument, "_held_value", argument)


def values_in(argument: object) -> Iterator[Value]:
    """Yield every value in an argument, which may be nested in tuples, lists, slices and dicts."""
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


def map_argument(argument: object, replace: Mapping[Any, object]) -> object:
    if isinstance(argument, (Value, SymbolicDim)):
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


class Value(ValueBase):
    """One output of one node. Identity is equality. A handle: its attributes ask the graph."""

    __slots__ = ()

    @property
    def desc(self) -> TensorDesc | None:
        """Return shape and dtype by value; None when unknown or when this is not a tensor.

        Raises `PassError` in a pass that runs before shapes are inferred, where this one will be.
        """
        found = self.known_desc
        if found is None and self.graph.withholds_shapes and self.node.op_type != INPUT:
            raise PassError(
                f"the shape of {self.name!r} is not inferred yet: register the pass for "
                "AFTER_INFER_SHAPE or later"
            )
        return found

    @property
    def size(self) -> Dim | None:
        """Return the number that this value is, where it is a size; None if it is anything else."""
        dialect = self.graph.dialect
        return None if dialect is None else dialect.as_size(self.meta)

    @property
    def known_desc(self) -> TensorDesc | None:
        """Return the same; None too where shapes are not inferred; an input's as declared."""
        dialect, meta = self.graph.dialect, self.meta
        if meta is None or dialect is None:
            declared = self.node.meta.get("desc")
            return declared if isinstance(declared, TensorDesc) else None
        return dialect.describe(meta)

    def __repr__(self) -> str:
        if self.is_erased:
            return f"<value of an erased node {self._node._name}>"
        desc = self.known_desc
        return f"%{self.name}" if desc is None else f"%{self.name}: {desc}"


class Node(NodeBase):
    """One operation.

    Its arguments stand in schema order; each is a value, a host value, or a tuple of these.
    A handle: `name`, `op_type`, `operator`, `arguments`, `keywords`, `inputs`, `outputs`, `output`,
    `users`, `control_inputs`, `control_users`, `next`, `order`, `pure` and `graph` ask the graph.
    `meta` is free for anyone (`rule` is the pass that made the node, `stack_trace` the user's
    line), `handle` is the node of the mirrored graph, `payload` the data of a constant that passes
    may fold.
    """

    __slots__ = ()

    @property
    def attributes(self) -> Mapping[str, object]:
        """Return the host arguments (those without a value in them) by schema name."""
        names = [parameter.name for parameter in self.operator.parameters]
        found = {
            name: argument
            for name, argument in zip(names, self.arguments, strict=False)
            if next(values_in(argument), None) is None
        }
        return MappingProxyType(found)

    def argument(self, name: str) -> object:
        """Return the argument of this schema name; `KeyError` lists the names if there is none."""
        return self.arguments[self.operator.index_of(name)]

    def has_attr(self, name: str) -> bool:
        """Return whether there is a parameter or an attribute of this name."""
        named = any(parameter.name == name for parameter in self.operator.parameters)
        return named or name in self._free_attributes()

    def get_attr(self, name: str) -> object:
        """Return the argument or attribute of this name; `KeyError` lists both if there is none."""
        if name in self._free_attributes():
            return self._free_attributes()[name]
        if not self.has_attr(name):
            known = [parameter.name for parameter in self.operator.parameters]
            raise KeyError(
                f"node {self.name!r} ({self.op_type}) has no attribute {name!r}; it has "
                f"{[*known, *self._free_attributes()]}"
            )
        return self.argument(name)

    def set_attr(self, name: str, value: object) -> None:
        """Make `value` the argument of the parameter `name`, or keep it with the node."""
        graph = self.graph
        if any(parameter.name == name for parameter in self.operator.parameters):
            graph.set_argument(self, name, value)
            return
        if "attributes" not in self.meta:
            graph.set_entry(self.meta, "attributes", {})
        graph.set_entry(self._free_attributes(), name, value)

    def _free_attributes(self) -> dict[str, object]:
        found = self.meta.get("attributes")
        return found if isinstance(found, dict) else {}

    def get_all_in_anchors(self) -> tuple[InAnchor, ...]:
        """Return all inputs of this node; a value that is read twice stands twice."""
        return tuple(InAnchor(self, index) for index in range(len(self.inputs)))

    def get_all_out_anchors(self) -> tuple[OutAnchor, ...]:
        """Return the outputs of this node."""
        return tuple(OutAnchor(self, index) for index in range(len(self.outputs)))

    def get_in_data_nodes(self) -> tuple[Node, ...]:
        """Return the nodes whose values this one reads, each once."""
        return tuple(dict.fromkeys(value.node for value in self.inputs))

    def get_out_data_nodes(self) -> tuple[Node, ...]:
        """Return the nodes that read a value of this one, each once, in graph order."""
        return self.users

    def get_in_control_nodes(self) -> tuple[Node, ...]:
        """Return nodes that must run before this: `control_inputs`, and those sharing memory."""
        order = _ordered_by_memory(self)
        found = [other for other in order if other.is_before(self) and self not in other.users]
        return _sorted(found, self.control_inputs)

    def get_out_control_nodes(self) -> tuple[Node, ...]:
        """Return nodes that must run after this: `control_users`, and those sharing memory."""
        order = _ordered_by_memory(self)
        found = [other for other in order if self.is_before(other) and other not in self.users]
        return _sorted(found, self.control_users)

    # The names of GE

    @property
    def type(self) -> str:
        """Return the same as `op_type`."""
        return self.op_type

    def get_inputs_size(self) -> int:
        """Return how many values it reads."""
        return len(self.inputs)

    def get_outputs_size(self) -> int:
        """Return how many values it computes."""
        return len(self.outputs)

    def get_input_desc(self, index: int) -> TensorDesc | None:
        """Return what the value looks like that it reads as number `index`; see `Value.desc`."""
        return self.inputs[index].desc

    def get_output_desc(self, index: int) -> TensorDesc | None:
        """Return what its output number `index` looks like; see `Value.desc`."""
        return self.outputs[index].desc

    def get_in_data_nodes_and_port_indexes(self, in_index: int) -> tuple[Node, int]:
        """Return where the value number `in_index` that it reads comes from: node and output."""
        value = self.inputs[in_index]
        return value.node, value.index

    def get_out_data_nodes_and_port_indexes(self, out_index: int) -> list[tuple[Node, int]]:
        """Return where output `out_index` is read: nodes and their inputs, in graph order."""
        peers = self.get_all_out_anchors()[out_index].peers
        return [(anchor.node, anchor.index) for anchor in peers]

    def __repr__(self) -> str:
        return f"<erased node {self._name}>" if self.is_erased else node_text(self)


def as_called(node: Node) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return the arguments of a node as they would be given to its operator."""
    named = dict(node.keywords)
    given = []
    parameters = node.operator.parameters
    for index, argument in enumerate(node.arguments):
        if index < len(parameters) and parameters[index].keyword_only:
            named[parameters[index].name] = argument
        else:
            given.append(argument)
    return tuple(given), named


@dataclass(frozen=True)
class InAnchor:
    """Input number `index` of a node, counted over the values that it reads."""

    node: Node
    index: int

    @property
    def value(self) -> Value:
        """Return what is read here."""
        return self.node.inputs[self.index]

    @property
    def peer(self) -> OutAnchor:
        """Return where the value comes from."""
        return OutAnchor(self.value.node, self.value.index)


@dataclass(frozen=True)
class OutAnchor:
    """Output number `index` of a node."""

    node: Node
    index: int

    @property
    def value(self) -> Value:
        """Return what goes out here."""
        return self.node.outputs[self.index]

    @property
    def peers(self) -> tuple[InAnchor, ...]:
        """Return where the value is read, in graph order."""
        return tuple(
            InAnchor(user, index)
            for user in self.value.users
            for index, value in enumerate(user.inputs)
            if value is self.value
        )


def _sorted(found: list[Node], edges: tuple[Node, ...]) -> tuple[Node, ...]:
    return tuple(sorted({*found, *edges}, key=lambda node: node.order))


def _ordered_by_memory(node: Node) -> list[Node]:
    """Return the nodes ordered with `node` by memory that one writes, or by unknown effects."""
    graph = node.graph
    aliases = AliasAnalysis(graph)
    if aliases.quiet:
        return []
    uses, writes = _memory_of(node, aliases)
    found = []
    for other in graph.nodes:
        if other is node or not other.inputs:
            continue
        other_uses, other_writes = _memory_of(other, aliases)
        opaque = node.operator.opaque or other.operator.opaque
        if opaque or uses & other_writes or writes & other_uses:
            found.append(other)
    return found


def _memory_of(node: Node, aliases: AliasAnalysis) -> tuple[set[NodeBase], set[NodeBase]]:
    """Return the storages that a node uses, and those it writes, each as its root value."""
    uses = {aliases.root(value) for value in (*node.inputs, *node.outputs)}
    writes = {
        aliases.root(value)
        for index in node.operator.mutates
        for value in values_in(node.arguments[index])
    }
    return uses, writes


def argument_text(argument: object) -> str:
    """Return one argument: `%name` for a value, `[a, b]` for a list, `repr` for host values."""
    if isinstance(argument, Value):
        return f"%{argument.name}"
    if isinstance(argument, (tuple, list)):
        return f"[{', '.join(argument_text(item) for item in argument)}]"
    if isinstance(argument, dict):
        pairs = [f"{key!r}: {argument_text(item)}" for key, item in argument.items()]
        return f"{{{', '.join(pairs)}}}"
    if isinstance(argument, slice):
        ends = (argument.start, argument.stop, argument.step)
        return f"slice({', '.join(map(argument_text, ends))})"
    return repr(argument)


def node_text(node: Node) -> str:
    """Return `%y: float32[2, 3] = aten::addmm(self=%bias, ...)` of `node`, and control edges."""
    names = [parameter.name for parameter in node.operator.parameters]
    shown = []
    for index, argument in enumerate(node.arguments):
        prefix = f"{names[index]}=" if index < len(names) else ""
        shown.append(prefix + argument_text(argument))
    shown.extend(f"{name}={argument_text(item)}" for name, item in node.keywords.items())
    call = f"{node.op_type}({', '.join(shown)})"
    if node.control_inputs:
        call = f"{call} after {', '.join(f'%{source.name}' for source in node.control_inputs)}"
    if not node.outputs:
        return call
    return f"{', '.join(repr(value) for value in node.outputs)} = {call}"


use_ir_types(Node, Value, Operator, Parameter)
