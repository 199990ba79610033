"""Computing once what depends on constants only."""

from __future__ import annotations

from bringup import ir

__all__ = ["fold_constants"]


def fold_constants(graph: ir.Graph) -> int:
    """Replace every operator whose inputs are constants with a payload by the constant it computes.

    Returns how many operators are gone. What shares memory with a result of the graph, or is
    written in it, is left alone: each call must return memory of its own.
    """
    assert graph.dialect is not None, "constants are evaluated by the graph's dialect"
    aliases = ir.AliasAnalysis(graph, track_views=True)
    payloads: dict[ir.Value, object] = {
        node.output: node.payload for node in graph.find(ir.CONSTANT) if node.payload is not None
    }
    if not payloads:
        return 0
    returned = {aliases.root(value) for value in graph.outputs}
    folded: list[ir.Node] = []
    for node in graph.nodes:
        if not (node.operator.parameters and node.inputs and node.pure and node.outputs):
            continue
        if any(value not in payloads for value in node.inputs):
            continue
        if any(
            aliases.root(value) in returned or aliases.writer_of(value) for value in node.outputs
        ):
            continue
        if not graph.dialect.can_fold(node):
            continue
        results = graph.dialect.evaluate(node, payloads)
        payloads.update(zip(node.outputs, results, strict=True))
        folded.append(node)
    gone = frozenset(folded)
    for node in folded:
        for value in node.outputs:
            if any(user not in gone for user in value.users):
                constant = graph.add_constant(payloads[value], name=f"{node.name}_folded")
                graph.replace_all_uses(value, constant)
    for node in reversed(folded):
        graph.erase(node)
    return len(folded)
