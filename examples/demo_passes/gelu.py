"""Bias + GELU -> `bringup::bias_gelu`, in two steps: a linear layer before a GELU is taken apart,
so that its bias can join the GELU.
"""

from __future__ import annotations

from bringup import ir, kernels, passes

kernels.load()


@passes.register_decompose_pass(
    name="DemoSplitBias",
    stage=passes.PassStage.BEFORE_INFER_SHAPE,
    op_types=("aten::addmm",),
    priority=20,
)
class SplitBias(passes.DecomposePass):
    """addmm(bias, x, w) -> mm(x, w) + bias, only where a GELU follows."""

    def meet_requirements(self, node: ir.Node) -> bool:
        bias = node.inputs[0].desc
        plain = node.argument("beta") == 1 and node.argument("alpha") == 1
        return plain and bias is not None and bias.shape.rank == 1 and _feeds_gelu(node)

    def replacement(self, node: ir.Node) -> ir.TensorHolder:
        builder = ir.GraphBuilder()
        bias, x, weight = builder.create_inputs(3)
        return builder.op("aten::add.Tensor", builder.op("aten::mm", x, weight), bias)


def _feeds_gelu(node: ir.Node) -> bool:
    users = node.users
    if len(users) == 1 and users[0].op_type == "aten::view":
        users = users[0].users
    return len(users) == 1 and users[0].op_type == "aten::gelu"


@passes.register_fusion_pass(
    name="DemoBiasGelu", stage=passes.PassStage.BEFORE_INFER_SHAPE, priority=10
)
class BiasGelu(passes.PatternFusionPass):
    @passes.pattern
    def exact(self, inputs: passes.PatternInputs) -> ir.TensorHolder:
        x, bias = inputs[0:2]
        op = x.builder.op
        return op(
            "aten::gelu",
            op("aten::view", op("aten::add.Tensor", x, bias), passes.any_value("size")),
        )

    def meet_requirements(self, match_result: passes.MatchResult) -> bool:
        x, bias = (value.desc for value in match_result.inputs)
        if x is None or bias is None or x.dtype not in {"float32", "float64"}:
            return False
        return bias.dtype == x.dtype and bias.shape.dims == x.shape.dims[-1:]

    def replacement(self, match_result: passes.MatchResult) -> ir.TensorHolder:
        builder = ir.GraphBuilder()
        x, bias = builder.create_inputs(2)
        fused = builder.op("bringup::bias_gelu", x, bias)
        return builder.op("aten::view", fused, match_result["size"])
