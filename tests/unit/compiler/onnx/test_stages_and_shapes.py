"""Stages, shapes, folding and support on ONNX models."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tests.unit.compiler.onnx.node_tests import node_tests
from tests.unit.compiler.onnx.support import (
    LINEAR,
    STAGE,
    assert_same_results,
    feeds_of,
    model_of,
    op_types,
    register,
    rewritten,
)

from bringup import ir, passes
from bringup.compiler import onnx as bringup_onnx
from bringup.errors import PassError, SchemaError


def test_a_pass_before_shape_inference_may_not_read_what_the_file_does_not_say():
    seen = {}

    def ask(name):
        def meets(match):
            try:
                seen[name] = str(match.outputs[0].desc)
            except PassError as error:
                seen[name] = str(error)
            return False

        return meets

    for name, stage in (("Before", passes.PassStage.BEFORE_INFER_SHAPE), ("After", STAGE)):
        register(
            lambda op, inputs: op.MatMul(inputs[0], inputs[1]),
            lambda builder, match: None,
            name=name,
            stage=stage,
            meets=ask(name),
        )
    rewritten(model_of(LINEAR))
    assert seen["After"] == "float32[N, 3]"
    assert "the shape of 't' is not inferred yet" in seen["Before"]
    with_info = LINEAR.replace("(float[N,3] y) {", "(float[N,3] y) <float[N,3] t> {")
    rewritten(model_of(with_info))
    assert seen["Before"] == "float32[N, 3]"


def test_shapes_that_depend_on_constants_are_inferred():
    proto = model_of(
        "g (float[2,6] x) => (float[P,Q,R] y) <int64[3] s = {2,3,2}> "
        "{ t = Reshape(x, s) y = Relu(t) }"
    )
    graph = bringup_onnx.from_proto(proto).graph
    ir.infer_shapes(graph)
    (reshape,) = graph.find("onnx::Reshape")
    assert str(reshape.output.desc) == "float32[2, 3, 2]"


def test_what_the_file_knows_of_a_value_is_kept_where_less_can_be_inferred():
    proto = model_of(
        "g (float[N,6] x, int64[2] s) => (float[M,K] y) <float[M,3] t> "
        "{ t = Reshape(x, s) y = Relu(t) }"
    )
    graph = bringup_onnx.from_proto(proto).graph
    ir.infer_shapes(graph)
    (reshape,) = graph.find("onnx::Reshape")
    assert str(reshape.output.desc) == "float32[M, 3]"


def test_constants_are_folded_when_asked_for():
    proto = model_of(
        """g (float[2] x) => (float[2] y) <float[2] a = {1, 2}, float[2] b = {3, 4}> {
            c = Add(a, b)
            d = Neg(c)
            y = Mul(x, d)
        }"""
    )
    after, report = rewritten(proto, fold=True)
    assert report.folded == 2
    assert op_types(after) == ["Mul"]
    assert_same_results(proto, after)
    assert rewritten(proto)[0] == proto


def test_support_is_known_for_operators_with_a_schema():
    graph = bringup_onnx.from_proto(
        model_of(
            "g (float[2] x) => (float[2] y) { t = com.example.F(x) y = Relu(t) }",
            opset='"" : 17, "com.example" : 1',
        )
    ).graph
    answers = [
        passes.check_node_support(graph.find(kind)[0]) for kind in ("onnx::Relu", "com.example::F")
    ]
    assert answers[0] == (True, "")
    assert answers[1][0] is False
    assert "com.example::F has no schema" in answers[1][1]


def test_constants_of_every_dtype_survive_passes():
    """Data of the small dtypes are written as they were read."""
    kinds = {
        "bfloat16": onnx.TensorProto.BFLOAT16,
        "float8_e4m3fn": onnx.TensorProto.FLOAT8E4M3FN,
        "int4": onnx.TensorProto.INT4,
        "uint4": onnx.TensorProto.UINT4,
        "float16": onnx.TensorProto.FLOAT16,
        "bool": onnx.TensorProto.BOOL,
        "complex64": onnx.TensorProto.COMPLEX64,
    }
    dialect = bringup_onnx.OnnxDialect()
    for dtype, kind in kinds.items():
        tensor = helper.make_tensor("t", kind, [3], [0, 1, 1])
        payload = bringup_onnx.ConstantTensor(tensor)
        assert str(payload.desc) == f"{dtype}[3]"
        data = dialect.constant_data(payload)
        again = dialect.constant_of(data)
        np.testing.assert_array_equal(
            again.numpy().astype(np.complex64), numpy_helper.to_array(tensor).astype(np.complex64)
        )
        assert again.proto.data_type == kind


def test_a_pass_may_use_a_weight_again():
    """One tensor that two constants hold is written once."""
    register(
        lambda op, inputs: op.Add(inputs[0], passes.constant(name="bias")),
        lambda builder, match: builder.onnx.Sub(
            builder.create_input(),
            builder.onnx.Neg(builder.create_constant(match["bias"].node.payload.numpy())),
        ),
    )
    proto = model_of(
        "g (float[2] x) => (float[2] y) <float[2] b = {1, 2}> { t = Add(x, b) y = Add(t, b) }"
    )
    after, report = rewritten(proto, verify=True)
    assert report.matches["P"] == 2
    assert_same_results(proto, after)


def test_schema_errors_are_raised_where_a_graph_is_built_by_hand():
    builder = ir.GraphBuilder("g", bringup_onnx.OnnxDialect({"": 17}))
    x = builder.create_input("x", shape=("n", 2))
    y = builder.onnx.Relu(x)
    assert str(y.value.desc) == "float32[n, 2]"
    with pytest.raises(SchemaError, match="no operator onnx::Rely"):
        builder.onnx.Rely(x)


def test_feeds_are_random_but_repeatable():
    proto = model_of(LINEAR)
    one, two = feeds_of(proto), feeds_of(proto)
    assert all((one[name] == two[name]).all() for name in one)


def test_what_onnx_infers_is_remembered_for_calls_that_look_the_same():
    """Unknown sizes of two such calls stay two sizes."""
    graph = bringup_onnx.from_proto(
        model_of(
            """g (float[2,N] x) => (int64[M] y) {
                a = NonZero(x)
                b = NonZero(x)
                c = Neg(a)
                d = Neg(b)
                y = ReduceMax<axes = [0], keepdims = 0>(c)
            }"""
        )
    ).graph
    ir.infer_shapes(graph)
    one, other = (node.output.desc for node in graph.find("onnx::NonZero"))
    assert (one.dtype, one.shape[0]) == ("int64", 2)
    assert not ir.same_size(one.shape[1], other.shape[1])
    assert len(graph.dialect.inferred) == 2


def named(proto, shapes):
    """What each size of the inputs is called now; the outputs say nothing."""
    sizes = {}
    for number, (info, shape) in enumerate(zip(proto.graph.input, shapes, strict=True)):
        dims = info.type.tensor_type.shape.dim
        if shape is None or len(dims) != len(shape):
            continue
        for axis, dim in enumerate(dims):
            dim.dim_param = f"input_{number}_{axis}"
            sizes[dim.dim_param] = shape[axis]
    for info in proto.graph.output:
        info.type.tensor_type.ClearField("shape")
    return sizes


@pytest.mark.slow
def test_what_is_inferred_of_named_sizes_is_so_for_every_operator(kernel_cache):
    """The node tests of onnx with names for all sizes, and the shapes of what they expect."""
    compared = 0
    for name, (data, shapes) in node_tests(kernel_cache).items():
        given, expected = shapes or ((), ())
        proto = onnx.ModelProto.FromString(data)
        if len(given) != len(proto.graph.input) or len(expected) != len(proto.graph.output):
            continue
        sizes = named(proto, given)
        graph = bringup_onnx.from_proto(proto).graph
        try:
            ir.infer_shapes(graph)
        except PassError:
            continue  # the operator needs to know a size
        for value, shape in zip(graph.outputs, expected, strict=True):
            if value.desc is None or shape is None:
                continue
            inferred = tuple(value.desc.shape)
            assert len(inferred) == len(shape), f"{name}: {value.desc} is {shape}"
            assert all(
                size == (dim if isinstance(dim, int) else sizes.get(str(dim), size))
                for dim, size in zip(inferred, shape, strict=True)
            ), f"{name}: {value.desc} is {shape}"
            compared += 1
    assert compared > 1000


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("g () => (float[40000,40000] y) <int64[2] s = {40000, 40000}> { y = ConstantOfShape(s) }",
         ["ConstantOfShape"]),
        ("g (float[1] x) => (float[N,K] y) <int64[2] s = {3000, 3000}> "
         "{ c = ConstantOfShape(s) y = Add(c, x) }", ["ConstantOfShape", "Add"]),
        ("g (float[1] x) => (float[2] y) <int64[1] s = {2}> { c = ConstantOfShape(s) "
         "y = Add(c, x) }", ["Add"]),
    ],
)  # fmt: skip
def test_what_is_large_is_not_folded(text, kept):
    """A file of 100 bytes became one of 36 MB."""
    assert op_types(rewritten(model_of(text), fold=True)[0]) == kept


def test_results_and_what_constants_decide_are_folded():
    """Results of the graph and of branches, a branch that is always taken, one in another."""
    proto = model_of(
        """g (float[2] x, bool q) => (float[2] k, float[2] y, float[2] z)
        <float[2] a = {1, 2}, bool no = {0}> {
            k = Add(a, a)
            yes = Not(no)
            y = If(yes) <then_branch = t () => (float[2] u) { b = Mul(a, a) u = Add(b, x) },
                         else_branch = e () => (float[2] v) { v = Abs(x) }>
            z = If(q) <then_branch = t2 () => (float[2] u2) { u2 = Sub(a, a) },
                       else_branch = e2 () => (float[2] v2) {
                v2 = If(no) <then_branch = t3 () => (float[2] u3) { u3 = Neg(x) },
                             else_branch = e3 () => (float[2] v3) { v3 = Exp(x) }> }>
        }"""
    )
    after, report = rewritten(proto, fold=True)
    assert report.folded == 6
    assert sorted(op_types(after)) == ["Add", "Identity", "If"]
    (branches,) = (node.attribute for node in after.graph.node if node.op_type == "If")
    assert sorted(branch.g.node[0].op_type for branch in branches) == ["Exp", "Identity"]
    for q in (True, False):
        feeds = {"x": np.array([1, -2], np.float32), "q": np.array(q)}
        assert_same_results(proto, after, feeds)
