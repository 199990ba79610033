"""Linear layers over one input become one: query, key and value; gate and up."""

from __future__ import annotations

from collections import defaultdict

from bringup import ir, passes
from bringup.kernels.patterns._support import is_frozen, refuse_writers, require

__all__ = ["MergeProjections"]

_INPUTS = {"aten::addmm": "mat1", "aten::mm": "self"}


class MergeProjections(passes.FusionBasePass):
    """Products (`mm`, `addmm`) of one input with frozen weights -> one product and a split.

    Does nothing where weights are not constants: joining them at every call costs more than it
    saves.
    """

    def run(self, graph: ir.Graph, context: passes.PassContext) -> None:
        """Merge every group of at least two."""
        refuse_writers(graph)
        groups: dict[object, list[ir.Node]] = defaultdict(list)
        layers = [(node, x) for op_type, x in _INPUTS.items() for node in graph.find(op_type)]
        require(bool(layers), f"the graph has no {' or '.join(_INPUTS)}")
        for node, x in layers:
            try:
                _require_frozen(node)
            except passes.PassSkipException as reason:
                context.refuse(node.name, str(reason))
                continue
            groups[node.op_type, _source(node.argument(x))].append(node)
        for group in groups.values():
            first = group[0]
            if len(group) > 1:
                _merge(graph, first.op_type, group, context)
            else:
                context.refuse(first.name, f"no other {first.op_type} reads its input")


def _require_frozen(node: ir.Node) -> None:
    require(is_frozen(node.argument("mat2")), "the weight is no constant")
    if node.op_type == "aten::mm":
        return
    bias = node.argument("self")
    is_plain = node.argument("beta") == 1 and node.argument("alpha") == 1
    require(is_plain, "the bias or the product is scaled")
    desc = bias.desc if isinstance(bias, ir.Value) else None
    require(desc is not None and desc.shape.rank == 1, "the bias is not one number per column")
    require(is_frozen(bias), "the bias is no constant")


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
