"""What dropout leaves behind in evaluation mode is a copy, which goes where nobody writes."""

from __future__ import annotations

from bringup import ir, passes


@passes.register_fusion_pass(
    name="DemoDropCopies", stage=passes.PassStage.BEFORE_INFER_SHAPE, priority=40
)
class DropCopies(passes.FusionBasePass):
    def run(self, graph: ir.Graph, context: passes.PassContext) -> None:
        if any(node.operator.mutates or node.operator.opaque for node in graph.nodes):
            return
        returned = set(graph.outputs)
        for node in graph.find("aten::clone"):
            source = node.argument("self")
            if node.argument("memory_format") is not None or source.node.op_type == ir.INPUT:
                continue
            if node.output not in returned:
                graph.replace_all_uses(node.output, source)
                graph.erase_dead(node)
