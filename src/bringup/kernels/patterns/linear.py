"""Linear layers over one input become one: query, key and value; gate and up."""

from __future__ import annotations

from collections import defaultdict

from bringup import ir, passes
from bringup.kernels.patterns._support import is_frozen, refuse_writers

__all__ = ["MergeProjections"]


class MergeProjections(passes.FusionBasePass):
    """Products (`mm`, `addmm`) of one input with frozen weights -> one product and a split.

    Does nothing where weights are not constants: joining them at every call costs more than it
    saves.
    """

    def run(self, graph: ir.Graph, context: passes.PassContext) -> None:
        """Merge every group of at least two."""
        refuse_writers(graph)
        groups: dict[object, list[ir.Node]] = defaultdict(list)
        for op_type, x in (("aten::addmm", "mat1"), ("aten::mm", "self")):
            for node in graph.find(op_type):
                if _is_frozen_layer(node):
                    groups[op_type, _source(node.argument(x))].append(node)
        for (op_type, _), group in groups.items():  # type: ignore[misc]
            if len(group) > 1:
                _merge(graph, str(op_type), group, context)


def _is_frozen_layer(node: ir.Node) -> bool:
    if not is_frozen(node.argument("mat2")):
        return False
    if node.op_type == "aten::mm":
        return True
    bias = node.argument("self")
    plain = node.argument("beta") == 1 and node.argument("alpha") == 1
    one_dimension = (
        isinstance(bias, ir.Value) and bias.desc is not None and bias.desc.shape.rank == 1
    )
    return plain and one_dimension and is_frozen(bias)


def _source(value: object) -> object:
    """What a matrix looks at: several views of one tensor in one shape are one input."""
    assert isinstance(value, ir.Value)
    node = value.node
    if node.op_type in ("aten::view", "aten::_unsafe_view") and value.desc is not None:
        return node.argument("self"), value.desc.shape
    return value


def _merge(
    graph: ir.Graph, op_type: str, group: list[ir.Node], context: passes.PassContext
) -> None:
    first = group[0]
    op = graph.inserting_before(first).op
    weight = op("aten::cat", [node.argument("mat2") for node in group], 1)
    if op_type == "aten::addmm":
        bias = op("aten::cat", [node.argument("self") for node in group])
        merged = op(op_type, bias, first.argument("mat1"), weight)
    else:
        merged = op(op_type, first.argument("self"), weight)
    widths = [node.output.desc.shape[1] for node in group if node.output.desc is not None]
    parts = op("aten::split_with_sizes", merged, widths, 1, outputs=len(widths))
    assert isinstance(parts, tuple)
    passes.report_fuse(group, [parts[0].value.node], context)
    for node, part in zip(group, parts, strict=True):
        graph.replace_all_uses(node.output, part)
    graph.erase_dead(*group)
