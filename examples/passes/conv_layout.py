"""Pairs of permutations that undo each other around pointwise operators are taken out, so that
convolutions of a model written for [N, H, W, C] keep one layout between them.
"""

from __future__ import annotations

from bringup import ir, passes

_POINTWISE = frozenset({"aten::relu", "aten::sigmoid", "aten::tanh", "aten::silu", "aten::gelu"})


@passes.register_fusion_pass(name="SampleConvLayout", stage=passes.PassStage.AFTER_INFER_SHAPE)
class ConvLayout(passes.FusionBasePass):
    def run(self, graph: ir.Graph, context: passes.PassContext) -> None:
        for last in graph.find("aten::permute"):
            chain = self._back_to_inverse(last)
            if chain is not None and passes.can_fuse(chain):
                self._take_out(graph, chain, context)

    def _back_to_inverse(self, last: ir.Node) -> list[ir.Node] | None:
        """permute, pointwise operators that nobody else reads, and the inverse permute `last`."""
        chain = [last]
        node = last.inputs[0].node
        while node.op_type in _POINTWISE and node.users == (chain[0],):
            chain.insert(0, node)
            node = node.inputs[0].node
        if node.op_type != "aten::permute" or node.users != (chain[0],):
            return None
        there, back = node.argument("dims"), last.argument("dims")
        rank = len(there)
        undone = [there[dim] % rank for dim in back] == list(range(rank))
        return [node, *chain] if undone else None

    def _take_out(self, graph: ir.Graph, chain: list[ir.Node], context: passes.PassContext) -> None:
        first, *pointwise, last = chain
        op = graph.inserting_before(first).op
        value: object = first.inputs[0]
        made = []
        for node in pointwise:
            holder = op(node.op_type, value, *node.arguments[1:])
            made.append(holder.value.node)
            value = holder
        passes.report_fuse(chain, made, context)
        graph.replace_all_uses(last.output, value)
        graph.erase_dead(last)
