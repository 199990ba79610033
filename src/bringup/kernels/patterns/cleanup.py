"""Copies that nobody needs, and what is computed from no input at all."""

from __future__ import annotations

from bringup import ir, passes
from bringup.kernels.patterns._support import refuse_writers
from bringup.passes.folding import fold_constants

__all__ = ["DropCopies", "FoldFactories"]

_MOST_ELEMENTS = 1 << 22


class DropCopies(passes.FusionBasePass):
    """Copies (dropout in evaluation mode leaves one), views and expansions to the same shape.

    A copy stays where a result shares its memory: what the caller does to that result must not
    reach another.
    """

    def run(self, graph: ir.Graph, context: passes.PassContext) -> None:
        """Let readers read the source."""
        refuse_writers(graph)
        storages = ir.Storages(graph, track_views=True)
        returned = {storages.root(value) for value in graph.outputs}
        for op_type in ("aten::clone", "aten::expand", "aten::view", "aten::_unsafe_view"):
            for node in graph.find(op_type):
                if storages.root(node.output) not in returned and self._is_idle(node):
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

    Results of more than four million elements are left to the graph, and so is what is random or
    shares memory with a result of the graph.
    """

    def run(self, graph: ir.Graph, context: passes.PassContext) -> None:
        """Make constants of the factories, then fold what reads only constants."""
        refuse_writers(graph)
        assert graph.dialect is not None, "factories are evaluated by the graph's dialect"
        storages = ir.Storages(graph, track_views=True)
        returned = {storages.root(value) for value in graph.outputs}
        for node in graph.nodes:
            if not self._is_small(node) or storages.root(node.output) in returned:
                continue
            (payload,) = graph.dialect.evaluate(node, {})
            graph.replace_all_uses(node.output, graph.add_constant(payload, name=node.name))
            graph.erase_dead(node)
        fold_constants(graph)

    def _is_small(self, node: ir.Node) -> bool:
        if not node.operator.parameters or node.inputs or not node.pure or len(node.outputs) != 1:
            return False
        desc = node.output.desc
        return desc is not None and desc.shape.is_static and desc.shape.numel <= _MOST_ELEMENTS
