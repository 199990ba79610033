"""Models as text, what they compute, and passes that tests share."""

import numpy as np
import onnx
from onnx import parser
from onnx.reference import ReferenceEvaluator

from bringup import compiler, ir, passes

STAGE = passes.PassStage.AFTER_INFER_SHAPE


def model_of(text, *, opset=17, ir_version=10, functions=""):
    """A checked model from the text of its graph, and those of its functions."""
    imports = f'"" : {opset}' if isinstance(opset, int) else opset
    proto = parser.parse_model(
        f"<ir_version: {ir_version}, opset_import: [{imports}]>\n{text}\n{functions}"
    )
    onnx.checker.check_model(proto)
    return proto


def feeds_of(proto, seed=0, size=3):
    """Random inputs of a model; symbolic sizes are `size`, booleans are true."""
    generator = np.random.default_rng(seed)
    found = {}
    for info in proto.graph.input:
        tensor = info.type.tensor_type
        shape = [dim.dim_value or size for dim in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        found[info.name] = (
            np.ones(shape, dtype)
            if dtype == np.bool_
            else generator.standard_normal(shape).astype(dtype)
        )
    return found


def results_of(proto, feeds):
    """What onnx's reference implementation computes."""
    return ReferenceEvaluator(proto).run(None, feeds)


def assert_same_results(before, after, feeds=None):
    """The two models compute the same, and the second one is valid."""
    onnx.checker.check_model(after, full_check=True)
    feeds = feeds_of(before) if feeds is None else feeds
    expected, got = results_of(before, feeds), results_of(after, feeds)
    for one, other in zip(expected, got, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def op_types(proto):
    """The operator types of the main graph in order."""
    return [node.op_type for node in proto.graph.node]


def register(found, replacement, *, name="P", stage=STAGE, meets=None, **options):
    """Register a pattern pass made of functions: `found(op, inputs)`, `replacement(op, match)`."""

    @passes.register_fusion_pass(name=name, stage=stage, **options)
    class Rewrite(passes.PatternFusionPass):
        @passes.pattern
        def the_pattern(self, inputs):
            return found(inputs[0].builder.onnx, inputs)

        def meet_requirements(self, match_result):
            return meets is None or meets(match_result)

        def replacement(self, match_result):
            builder = ir.GraphBuilder()
            return replacement(builder, match_result)

    return Rewrite


def register_gemm(name="MatMulAddToGemm", stage=STAGE):
    """MatMul and Add of matrices become a Gemm."""

    def is_plain(match_result):
        return all(value.desc.shape.rank == 2 for value in match_result.inputs[:2])

    return register(
        lambda op, inputs: op.Add(op.MatMul(inputs[0], inputs[1]), inputs[2]),
        lambda builder, match: builder.onnx.Gemm(*builder.create_inputs(3)),
        name=name,
        stage=stage,
        meets=is_plain,
    )


LINEAR = """g (float[N,4] x, float[4,3] w, float[3] b) => (float[N,3] y) {
    t = MatMul(x, w)
    y = Add(b, t)
}"""


def rewritten(proto, names=None, **options):
    """A rewritten copy of a proto, and the report."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return copy, compiler.apply_passes(copy, names, options=options)


def matches_of(proto, name="P", **options):
    return rewritten(proto, [name], **options)[1].matches[name]


def swap(old, new, **options):
    """Pass "P": the unary operator `old` becomes `new`, both functions of builder and value."""
    return register(
        lambda op, inputs: old(op, inputs[0]),
        lambda builder, match: new(builder.onnx, builder.create_input()),
        **options,
    )
