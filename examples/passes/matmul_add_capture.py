"""mm(a, b) + c -> addmm(c, a, b): explicit patterns whose nodes are captured and looked at."""

from __future__ import annotations

from bringup import ir, passes


@passes.register_fusion_pass(
    name="SampleMatMulAddCapture", stage=passes.PassStage.AFTER_INFER_SHAPE
)
class MatMulAddCapture(passes.PatternFusionPass):
    def patterns(self) -> passes.Pattern:
        builder = ir.GraphBuilder("matmul_add")
        a, b, c = builder.create_inputs(3)
        product = builder.op("aten::mm", a, b)
        total = builder.op("aten::add.Tensor", product, c, alpha=passes.any_value("alpha"))
        pattern = passes.Pattern(builder.build_and_reset(total))
        return pattern.capture_tensor(product).capture_tensor(total)

    def meet_requirements(self, match_result: passes.MatchResult) -> bool:
        product = match_result.get_captured_tensor(0)
        total = match_result.get_captured_tensor(1)
        same_shape = product.desc.shape == total.desc.shape  # c must not widen the product
        return match_result["alpha"] == 1 and same_shape and total.desc.dtype.startswith("float")

    def replacement(self, match_result: passes.MatchResult) -> ir.TensorHolder:
        builder = ir.GraphBuilder("gemm")
        a, b, c = builder.create_inputs(3)
        return builder.op("aten::addmm", c, a, b)
