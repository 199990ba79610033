"""Copies that nobody needs, and what is computed from no input at all."""

from __future__ import annotations

from bringup import ir, passes
from bringup.kernels.patterns._support import refuse_writers
from bringup.passes.folding import fold_constants

__all__ = ["DropCopies", "FoldFactories"]

_MOST_ELEMENTS = 1 << 22


class DropCopies(passes.FusionBasePass):
    """Copies (dropout in evaluation mode leaves one), views and expansions to the same shape."""

    def run(self, graph: ir.Graph, context: passes.PassContext) -> None:
        """Let readers read the source."""
        refuse_writers(graph)
        returned = set(graph.outputs)
        for op_type in ("aten::clone", "aten::expand", "aten::view", "aten::_unsafe_view"):
            for node in graph.find(op_type):
                if node.output not in returned and self._is_idle(node):
                    passes.report_fuse([node], [], context)
                    graph.replace_all_uses(node.output, node.argument("self"))
                    graph.erase_dead(node)

    def _is_idle(self, node: ir.Node) -> bool:
        source = node.argument("self")
        if not isinstance(source, ir.Value) or source.node.op_type == ir.INPUT:
            return False
        before, after = source.desc, node.output.desc
        return before is not None and after is not None and before == after


class FoldFactories(passes.FusionBasePass):
    """What depends on no input and has static sizes (a causal mask from `arange`) is computed now.

    Results of more than four million elements are left to the graph, and so is what is random.
    """

    def run(self, graph: ir.Graph, context: passes.PassContext) -> None:
        """Make constants of the factories, then fold what reads only constants."""
        refuse_writers(graph)
        assert graph.dialect is not None, "factories are evaluated by the graph's dialect"
        returned = set(graph.outputs)
        for node in graph.nodes:
            if node.operator.parameters and not node.inputs and self._is_small(node, returned):
                (payload,) = graph.dialect.evaluate(node, {})
                graph.replace_all_uses(node.output, graph.add_constant(payload, name=node.name))
                graph.erase_dead(node)
        fold_constants(graph)

    def _is_small(self, node: ir.Node, returned: set[ir.Value]) -> bool:
        if not node.pure or len(node.outputs) != 1 or node.output in returned:
            return False
        desc = node.output.desc
        return desc is not None and desc.shape.is_static and desc.shape.numel <= _MOST_ELEMENTS
