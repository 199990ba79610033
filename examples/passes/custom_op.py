"""A user's own operator in patterns: add_custom(add_custom(x, 0), y) -> add_custom(x, y), with the
zero as a constant, and the same where a copy stands between.
"""

from __future__ import annotations

import torch

from bringup import ir, passes


@torch.library.custom_op("samples::add_custom", mutates_args=())
def add_custom(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


@add_custom.register_fake
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


_OP = "samples::add_custom"


@passes.register_fusion_pass(
    name="SampleCustomOp", stage=passes.PassStage.AFTER_ORIGIN_GRAPH_OPTIMIZE
)
class DropAddOfZero(passes.PatternFusionPass):
    @passes.pattern
    def directly(self, inputs: passes.PatternInputs) -> ir.TensorHolder:
        op = inputs[0].builder.op
        return op(_OP, op(_OP, inputs[0], passes.constant(0.0)), inputs[1])

    @passes.pattern
    def behind_a_copy(self, inputs: passes.PatternInputs) -> ir.TensorHolder:
        op = inputs[0].builder.op
        inner = op("aten::clone", op(_OP, inputs[0], passes.constant(0.0)))
        return op(_OP, inner, inputs[1])

    def replacement(self, match_result: passes.MatchResult) -> ir.TensorHolder:
        builder = ir.GraphBuilder()
        return builder.op(_OP, *builder.create_inputs(2))
