"""Residual add + LayerNorm -> `bringup::add_layer_norm`: one kernel instead of two operators."""

from __future__ import annotations

from bringup import ir, kernels, passes

kernels.load()


@passes.register_fusion_pass(name="DemoAddLayerNorm", stage=passes.PassStage.BEFORE_INFER_SHAPE)
class AddLayerNorm(passes.PatternFusionPass):
    @passes.pattern
    def add_then_normalize(self, inputs: passes.PatternInputs) -> ir.TensorHolder:
        x, residual, weight, bias = inputs[0:4]
        normalized, _, _ = x.builder.op(
            "aten::native_layer_norm",
            x.builder.op("aten::add.Tensor", x, residual),
            passes.any_value("normalized_shape"),
            weight,
            bias,
            passes.any_value("eps"),
        )
        return normalized

    def meet_requirements(self, match_result: passes.MatchResult) -> bool:
        descriptions = [value.desc for value in match_result.inputs]
        if any(desc is None or desc.dtype not in {"float32", "float64"} for desc in descriptions):
            return False
        x, residual, weight, bias = descriptions
        one_dimension = weight.shape.rank == bias.shape.rank == 1
        return (
            one_dimension
            and x.shape == residual.shape
            and len({d.dtype for d in descriptions}) == 1
        )

    def replacement(self, match_result: passes.MatchResult) -> ir.TensorHolder:
        builder = ir.GraphBuilder()
        x, residual, weight, bias = builder.create_inputs(4)
        return builder.op("bringup::add_layer_norm", x, residual, weight, bias, match_result["eps"])
