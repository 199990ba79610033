"""MatMul and Add become Gemm in ONNX models: pattern and replacement in operators of ONNX, a
requirement on ranks, and a weight's transposition that goes into the Gemm.
"""

from __future__ import annotations

from bringup import ir, passes

STAGE = passes.PassStage.AFTER_INFER_SHAPE


def _is_matrix(value: ir.Value | None) -> bool:
    return value is not None and value.desc is not None and value.desc.shape.rank == 2


@passes.register_fusion_pass(name="SampleOnnxGemm", stage=STAGE, priority=1)
class MatMulAddToGemm(passes.PatternFusionPass):
    @passes.pattern
    def linear(self, inputs: passes.PatternInputs) -> ir.TensorHolder:
        x, weight, bias = inputs[0:3]
        op = x.builder.onnx
        return op.Add(op.MatMul(x, weight), bias)

    def meet_requirements(self, match_result: passes.MatchResult) -> bool:
        x, weight, _ = match_result.inputs
        return _is_matrix(x) and _is_matrix(weight)

    def replacement(self, match_result: passes.MatchResult) -> ir.TensorHolder:
        builder = ir.GraphBuilder("gemm")
        return builder.onnx.Gemm(*builder.create_inputs(3))


@passes.register_fusion_pass(name="SampleOnnxGemmTranspose", stage=STAGE, priority=0)
class TransposeIntoGemm(passes.PatternFusionPass):
    @passes.pattern
    def transposed(self, inputs: passes.PatternInputs) -> ir.TensorHolder:
        x, weight, bias = inputs[0:3]
        op = x.builder.onnx
        return op.Gemm(x, op.Transpose(weight, perm=[1, 0]), bias)

    def replacement(self, match_result: passes.MatchResult) -> ir.TensorHolder:
        builder = ir.GraphBuilder("gemm_transposed")
        return builder.onnx.Gemm(*builder.create_inputs(3), transB=1)
