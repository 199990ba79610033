"""relu(cat(xs)) -> cat(relu(x) for x in xs): a part of the graph picked by hand, with its border.

The number of tensors that are concatenated is open, so this is a graph pass.
"""

from __future__ import annotations

from bringup import ir, passes


@passes.register_fusion_pass(
    name="SampleReluBeforeConcat", stage=passes.PassStage.AFTER_INFER_SHAPE
)
class ReluBeforeConcat(passes.FusionBasePass):
    def run(self, graph: ir.Graph, context: passes.PassContext) -> None:
        for relu in graph.find("aten::relu"):
            cat = relu.inputs[0].node
            if cat.op_type == "aten::cat" and cat.users == (relu,):
                self._swap(cat, relu, context)

    def _swap(self, cat: ir.Node, relu: ir.Node, context: passes.PassContext) -> None:
        boundary = passes.SubgraphBoundary()
        sources = list(dict.fromkeys(cat.inputs))  # a tensor that stands twice is one input
        for number, value in enumerate(sources):
            ports = [(cat, port) for port, item in enumerate(cat.inputs) if item is value]
            boundary.add_input(number, passes.SubgraphInput(ports))
        boundary.add_output(0, passes.SubgraphOutput(relu))

        builder = ir.GraphBuilder("cat_of_relus")
        inputs = builder.create_inputs(len(sources))
        relus = [builder.op("aten::relu", x) for x in inputs]
        parts = [relus[sources.index(value)] for value in cat.inputs]
        joined = builder.op("aten::cat", parts, cat.argument("dim"))
        replacement = builder.build_and_reset(joined)
        passes.SubgraphRewriter.replace(boundary, replacement, context=context)
