"""What the passes of the library ask of values and graphs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from bringup import ir, passes

FLOATS = frozenset({"float32", "float64"})
ALL_FLOATS = FLOATS | {"bfloat16", "float16"}
"""Of the operators that compute 16-bit floats in float32."""
KNOWN_AT_RUN_TIME = "known only at run time"
"""In the reasons for what a pass does with known sizes and numbers alone."""

_SHAPE_CHANGES = frozenset(
    f"aten::{name}" for name in ("view", "_unsafe_view", "reshape", "clone", "contiguous", "expand")
)


class NodePass(passes.FusionBasePass):
    """A pass that edits around nodes of some operators, where nothing writes memory."""

    op_types: ClassVar[tuple[str, ...]]

    def run(self, graph: ir.Graph, context: passes.PassContext) -> None:
        """Try every node; the reasons of those that are left alone go to the report."""
        refuse_writers(graph)
        self.graph, self.context = graph, context
        nodes = [node for op_type in self.op_types for node in graph.find(op_type)]
        require(bool(nodes), f"the graph has no {' or '.join(self.op_types)}")
        for node in nodes:
            if not graph.owns(node):
                continue
            try:
                with graph.savepoint():
                    self.rewrite(node)
            except passes.PassSkipException as reason:
                context.refuse(node.name, str(reason))

    def rewrite(self, node: ir.Node) -> None:
        """Rewrite what stands around a node. `PassSkipException` leaves it alone and says why."""
        raise NotImplementedError


def single(
    builder: ir.GraphBuilder, op_type: str, *arguments: Any, **keywords: Any
) -> ir.TensorHolder:
    """Return the one output of an operator."""
    result = builder.op(op_type, *arguments, **keywords)
    assert isinstance(result, ir.TensorHolder)
    return result


def descriptions(values: Iterable[object]) -> list[ir.TensorDesc]:
    """Return the descriptions of values; `PassSkipException` if one is no tensor of known shape."""
    found = [value.desc if isinstance(value, ir.Value) else None for value in values]
    known = [desc for desc in found if desc is not None]
    require(len(known) == len(found) and bool(known), "a value is no tensor of known shape")
    return known


def described(
    values: Iterable[object], dtypes: frozenset[str] = FLOATS, otherwise: str = ""
) -> list[ir.TensorDesc]:
    """Describe tensors of one device and these dtypes; else skip, `otherwise` saying why."""
    known = descriptions(values)
    kinds = sorted({f"{desc.dtype} on {desc.device}" for desc in known})
    require(len(kinds) == 1, f"the tensors are of different kinds: {', '.join(kinds)}")
    dtype = known[0].dtype
    names = "float32 or float64" if dtypes == FLOATS else ", ".join(sorted(dtypes))
    reason = f"; {otherwise}" if otherwise and dtype in ALL_FLOATS else ""
    require(dtype in dtypes, f"{dtype} is not {names}{reason}")
    return known


def require(condition: bool, reason: str) -> None:
    """Leave a match alone for this reason unless the condition holds: `PassSkipException`."""
    if not condition:
        raise passes.PassSkipException(reason)


def last_dimension(dim: object, desc: ir.TensorDesc) -> bool:
    """Return whether an argument (a number, or a list of one) names the last dimension."""
    if isinstance(dim, tuple):
        return len(dim) == 1 and last_dimension(dim[0], desc)
    return dim in (-1, desc.shape.rank - 1) and not isinstance(dim, bool)


def rows_are_dense(desc: ir.TensorDesc) -> bool:
    """Return whether a tensor has elements and dense rows, as torch's fused attention assumes."""
    is_empty = any(ir.same_size(size, 0) for size in desc.shape)
    return not is_empty and len(desc.strides) > 0 and ir.same_size(desc.strides[-1], 1)


def close_to(argument: object, number: float) -> bool:
    """Return whether a captured argument is a number this near (1e-6 relative)."""
    return isinstance(argument, (int, float)) and abs(argument - number) <= 1e-6 * abs(number)


def is_scalar(argument: object) -> bool:
    """Return whether an argument is one float without dimensions, as in a dynamic graph."""
    desc = argument.desc if isinstance(argument, ir.Value) else None
    return desc is not None and desc.shape.rank == 0 and desc.dtype in FLOATS


def is_frozen(value: object) -> bool:
    """Return whether a value is a constant with data, or computed from such alone."""
    agenda, seen = [value], set()
    while agenda:
        item = agenda.pop()
        if not isinstance(item, ir.Value):
            return False
        if item in seen:
            continue
        seen.add(item)
        node = item.node
        if node.op_type == ir.CONSTANT:
            if node.payload is None:
                return False
        elif not node.inputs or not node.pure:
            return False
        agenda.extend(node.inputs)
    return True


def depends_on_sizes_alone(value: ir.Value) -> bool:
    """Return whether a value is made of numbers, constants and sizes alone."""
    agenda, seen = [value], set()
    while agenda:
        item = agenda.pop()
        if item in seen or item.size is not None:
            continue
        seen.add(item)
        if item.node.op_type == ir.INPUT:
            return False
        agenda.extend(item.node.inputs)
    return True


def refuse_writers(graph: ir.Graph) -> None:
    """Skip the pass on a graph in which something writes memory, or may."""
    for node in graph.nodes:
        if node.operator.mutates or node.operator.opaque:
            raise passes.PassSkipException(
                f"{node.name!r} ({node.op_type}) writes memory, or may: values are not exchanged "
                "across it"
            )


def without_shape_changes(value: ir.Value, rank: int) -> ir.Value | None:
    """Return the near value of this rank with the same elements in order, or None."""
    while True:
        node = value.node
        desc = value.desc
        if desc is None:
            return None
        source = node.argument("self") if node.op_type in _SHAPE_CHANGES else None
        inner = source.desc if isinstance(source, ir.Value) else None
        same = inner is not None and (
            inner.shape.same_as(desc.shape) if node.op_type == "aten::expand" else True
        )
        if desc.shape.rank == rank and not (
            same and inner is not None and inner.shape.same_as(desc.shape)
        ):
            return value
        if not same:
            return None
        assert isinstance(source, ir.Value)
        value = source


def single_user(value: ir.Value) -> ir.Node | None:
    """Return the only node that reads a value; None when there are more or fewer."""
    users = value.users
    return users[0] if len(users) == 1 else None
