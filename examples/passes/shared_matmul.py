"""Several products become one (the experts of a multi-gate mixture): those that share their left
operand become one wide product, those of equal shapes one batched product. How many there are is
open, so these are graph passes.
"""

from __future__ import annotations

from collections import defaultdict

from bringup import ir, passes

_STAGE = passes.PassStage.AFTER_INFER_SHAPE
_MM = "aten::mm"


def _independent(nodes: list[ir.Node]) -> list[ir.Node]:
    """Those of `nodes` that do not depend on one that stands before them."""
    chosen: list[ir.Node] = []
    for node in nodes:
        agenda, reached = [node], {node}
        while agenda:
            for value in agenda.pop().inputs:
                if value.node not in reached:
                    reached.add(value.node)
                    agenda.append(value.node)
        if not reached & set(chosen):
            chosen.append(node)
    return chosen


@passes.register_fusion_pass(name="SampleSharedInput", stage=_STAGE, priority=1)
class SharedInput(passes.FusionBasePass):
    """mm(x, w1), mm(x, w2), ... -> split(mm(x, cat(w1, w2, ...)))."""

    def run(self, graph: ir.Graph, context: passes.PassContext) -> None:
        groups: dict[ir.Value, list[ir.Node]] = defaultdict(list)
        for node in graph.find(_MM):
            groups[node.argument("self")].append(node)
        for x, group in groups.items():
            if len(group) > 1:
                self._merge(graph, x, group, context)

    def _merge(
        self, graph: ir.Graph, x: ir.Value, group: list[ir.Node], context: passes.PassContext
    ) -> None:
        op = graph.inserting_before(group[-1]).op
        weights = op("aten::cat", [node.argument("mat2") for node in group], 1)
        product = op(_MM, x, weights)
        widths = [node.output.desc.shape[1] for node in group]
        parts = op("aten::split_with_sizes", product, widths, 1, outputs=len(group))
        passes.report_fuse(group, [product.value.node], context)
        for node, part in zip(group, parts, strict=True):
            graph.replace_all_uses(node.output, part)
        graph.erase_dead(*group)


@passes.register_fusion_pass(name="SampleBatchedProducts", stage=_STAGE)
class BatchedProducts(passes.FusionBasePass):
    """mm(a1, b1), mm(a2, b2), ... of equal shapes -> unbind(bmm(stack(a), stack(b)))."""

    def run(self, graph: ir.Graph, context: passes.PassContext) -> None:
        groups: dict[object, list[ir.Node]] = defaultdict(list)
        for node in graph.find(_MM):
            groups[tuple(value.desc.shape for value in node.inputs)].append(node)
        for group in groups.values():
            level = _independent(group)
            if len(level) > 1:
                self._merge(graph, level, context)

    def _merge(self, graph: ir.Graph, level: list[ir.Node], context: passes.PassContext) -> None:
        op = graph.inserting_before(level[-1]).op
        left, right = (
            op("aten::stack", [node.argument(name) for node in level]) for name in ("self", "mat2")
        )
        product = op("aten::bmm", left, right)
        parts = op("aten::unbind.int", product, outputs=len(level))
        passes.report_fuse(level, [product.value.node], context)
        for node, part in zip(level, parts, strict=True):
            graph.replace_all_uses(node.output, part)
        graph.erase_dead(*level)
