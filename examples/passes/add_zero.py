"""x + 0 -> x, once with a zero that is nearly one (a tolerance), once with exactly a zero tensor (a
constant of the pattern, compared by value).
"""

from __future__ import annotations

import torch

from bringup import ir, passes


def _is_own_result(match_result: passes.MatchResult) -> bool:
    """Whether x may stand for x + 0: a result of the graph must not become one of its inputs."""
    (total,) = match_result.outputs
    returned = total in total.node.graph.outputs
    same = match_result.inputs[0].desc == total.desc
    return same and not (returned and match_result.inputs[0].node.op_type == ir.INPUT)


def _pass_through() -> ir.Graph:
    builder = ir.GraphBuilder("identity")
    return builder.build_and_reset(builder.create_input())


@passes.register_fusion_pass(
    name="SampleAddNearlyZero", stage=passes.PassStage.AFTER_ORIGIN_GRAPH_OPTIMIZE
)
class AddNearlyZero(passes.PatternFusionPass):
    @passes.pattern
    def add(self, inputs: passes.PatternInputs) -> ir.TensorHolder:
        zero = passes.constant(0.0, atol=1e-8)
        return inputs[0].builder.op("aten::add.Tensor", inputs[0], zero)

    def meet_requirements(self, match_result: passes.MatchResult) -> bool:
        return _is_own_result(match_result)

    def replacement(self, match_result: passes.MatchResult) -> ir.Graph:
        return _pass_through()


@passes.register_fusion_pass(
    name="SampleAddZeroTensor",
    stage=passes.PassStage.AFTER_ORIGIN_GRAPH_OPTIMIZE,
    priority=1,
)
class AddZeroTensor(passes.PatternFusionPass):
    def __init__(self) -> None:
        super().__init__(passes.PatternMatcherConfigBuilder().enable_const_value_match().build())

    def patterns(self) -> ir.Graph:
        graph = ir.Graph("add_zero_tensor")
        x, zero = graph.add_input(), graph.add_constant(torch.zeros(8))
        graph.set_outputs(graph.inserting_before(graph.output_node).op("aten::add.Tensor", x, zero))
        return graph

    def meet_requirements(self, match_result: passes.MatchResult) -> bool:
        return _is_own_result(match_result)

    def replacement(self, match_result: passes.MatchResult) -> ir.Graph:
        return _pass_through()
