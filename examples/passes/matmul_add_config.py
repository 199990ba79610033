"""mm(a, IDENTITY) + c -> a + c, for one 2 x 2 constant only: a matcher config compares constants by
value, and arguments (`alpha`) too. Constants are known where weights are frozen.
"""

from __future__ import annotations

import torch

from bringup import ir, passes

IDENTITY = torch.eye(2)


@passes.register_fusion_pass(
    name="SampleMatMulAddConfig", stage=passes.PassStage.AFTER_ORIGIN_GRAPH_OPTIMIZE
)
class MatMulAddConfig(passes.PatternFusionPass):
    def __init__(self) -> None:
        builder = passes.PatternMatcherConfigBuilder()
        super().__init__(builder.enable_const_value_match().enable_ir_attr_match().build())

    def patterns(self) -> ir.Graph:
        graph = ir.Graph("matmul_identity_add")
        a, c = graph.add_input(), graph.add_input()
        identity = graph.add_constant(IDENTITY)
        op = graph.inserting_before(graph.output_node).op
        graph.set_outputs(op("aten::add.Tensor", op("aten::mm", a, identity), c))
        return graph

    def replacement(self, match_result: passes.MatchResult) -> ir.TensorHolder:
        builder = ir.GraphBuilder("add")
        return builder.op("aten::add.Tensor", *builder.create_inputs(2))
