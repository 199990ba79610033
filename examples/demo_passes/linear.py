"""Linear layers with frozen weights: the three projections of attention become one, then every
weight is packed once for `bringup::packed_linear`. Both passes only write operators on constants
into the graph; the backend computes those once. They do nothing where weights are not constants
(`options={"freeze": True}`).
"""

from __future__ import annotations

from collections import defaultdict

from bringup import ir, kernels, passes

kernels.load()

_ADDMM = "aten::addmm"
_MM = "aten::mm"
_PANEL = 16  # columns in a panel of packed_linear's weight


def _is_frozen(value: object) -> bool:
    """Whether a value is a constant that may be computed with, or computed from such alone."""
    if not isinstance(value, ir.Value):
        return False
    node = value.node
    if node.op_type == ir.CONSTANT:
        return node.payload is not None
    return bool(node.inputs) and node.operator.pure and all(map(_is_frozen, node.inputs))


def _is_linear(node: ir.Node) -> bool:
    """Whether an addmm is a linear layer with frozen weight and bias."""
    bias = node.argument("self")
    if node.argument("beta") != 1 or node.argument("alpha") != 1 or not _is_frozen(bias):
        return False
    return bias.desc.shape.rank == 1 and _is_frozen(node.argument("mat2"))


def _source(value: ir.Value) -> object:
    """What a value looks at: several views of one tensor in one shape are one input."""
    if value.node.op_type == "aten::view":
        return value.node.argument("self"), value.desc.shape
    return value


@passes.register_fusion_pass(
    name="DemoMergeProjections", stage=passes.PassStage.BEFORE_INFER_SHAPE, priority=30
)
class MergeProjections(passes.FusionBasePass):
    """Linear layers over one input -> one layer over the concatenated weights, and a split."""

    def run(self, graph: ir.Graph, context: passes.PassContext) -> None:
        groups: dict[object, list[ir.Node]] = defaultdict(list)
        for node in graph.find(_ADDMM):
            if _is_linear(node):
                groups[_source(node.argument("mat1"))].append(node)
        for group in groups.values():
            if len(group) > 1:
                self._merge(graph, group)

    def _merge(self, graph: ir.Graph, group: list[ir.Node]) -> None:
        op = graph.inserting_before(group[0]).op
        weight = op("aten::cat", [node.argument("mat2") for node in group], 1)
        bias = op("aten::cat", [node.argument("self") for node in group])
        merged = op(_ADDMM, bias, group[0].argument("mat1"), weight)
        widths = [node.output.desc.shape[1] for node in group]
        parts = op("aten::split_with_sizes", merged, widths, 1, outputs=len(widths))
        for node, part in zip(group, parts, strict=True):
            graph.replace_all_uses(node.output, part)
        graph.erase_dead(*group)


@passes.register_fusion_pass(
    name="DemoPackLinear", stage=passes.PassStage.BEFORE_INFER_SHAPE, priority=-10
)
class PackLinear(passes.FusionBasePass):
    """mm and addmm with a frozen weight -> packed_linear, the weight laid out for the kernel."""

    def run(self, graph: ir.Graph, context: passes.PassContext) -> None:
        for node in graph.find(_ADDMM):
            if _is_linear(node):
                self._pack(graph, node, node.argument("mat1"), node.argument("self"))
        for node in graph.find(_MM):
            if _is_frozen(node.argument("mat2")):
                self._pack(graph, node, node.argument("self"), None)

    def _pack(self, graph: ir.Graph, node: ir.Node, x: ir.Value, bias: ir.Value | None) -> None:
        desc = node.argument("mat2").desc
        if desc.shape[1] % _PANEL or desc.dtype not in {"float32", "float64"}:
            return
        op = graph.inserting_before(node).op
        panels = op("bringup::pack_weight", op("aten::t", node.argument("mat2")))
        graph.replace_all_uses(node.output, op("bringup::packed_linear", x, panels, bias))
        graph.erase_dead(node)
