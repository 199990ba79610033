"""Shapes that a model computes from other shapes."""

import numpy as np
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as onnxruntime_errors
from tests.unit.compiler.onnx.support import model_of

from bringup import ir
from bringup.compiler import onnx as bringup_onnx
from bringup.compiler.onnx.types import is_unknown
from bringup.errors import PassError


def inferred(text, name="onnx::Reshape", opset=17):
    """The shape of the last node of this type; sizes that nothing is known of as "?"."""
    graph = bringup_onnx.from_proto(model_of(text, opset=opset)).graph
    ir.infer_shapes(graph)
    desc = graph.find(name)[-1].output.desc
    return None if desc is None else ["?" if is_unknown(size) else size for size in desc.shape]


HEADS = """g (float[N,S,768] x) => (float[?,?,?,?] y)
    <int64 i = {0}, int64 j = {1}, int64[1] zero = {0}, int64[1] h = {12}, int64[1] d = {64}> {
        t = Shape(x) n = Gather(t, i) s = Gather(t, j)
        n1 = Unsqueeze(n, zero) s1 = Unsqueeze(s, zero)
        c = Concat<axis = 0>(n1, s1, h, d) y = Reshape(x, c) }"""


def test_the_split_into_heads_keeps_the_names():
    assert inferred(HEADS) == ["N", "S", 12, 64]


def test_what_is_left_open_is_worked_out_where_the_names_cancel():
    assert inferred(HEADS.replace("{12}", "{-1}")) == ["N", "S", 12, 64]
    assert inferred(HEADS.replace("{12}", "{-1}").replace("{64}", "{65}")) == ["N", "S", "?", 65]
    assert inferred(
        HEADS.replace("x) => ", "x, float[A,B,C] z) => ").replace("(x, c)", "(z, c)")
    ) == [*("?", "?", 12, 64)]


def test_a_size_that_may_be_0_and_then_means_another_is_not_taken_over():
    text = """g (float[M,N] x, float[N] z) => (float[?,?] y) <int64[1] rest = {-1}> {
        t = Shape(z) c = Concat<axis = 0>(t, rest) y = Reshape%s(x, c) }"""
    assert inferred(text % "") == ["?", "?"]
    assert inferred((text % "<allowzero = 1>").replace("-1", "4")) == ["N", 4]


@pytest.mark.parametrize(
    ("steps", "shape"),
    [
        ("c = Shape<start = 1>(x)", ["S", 768]),
        ("c = Shape<start = -2, end = 2>(x)", ["S"]),
        ("t = Shape(x) c = Slice(t, one, big)", ["S", 768]),
        ("t = Shape(x) c = Slice(t, one, big, zero, one)", ["S", 768]),
        ("t = Shape(x) c = Slice(t, one, big, zero, two)", ["?"]),
        ("t = Shape(x) c = Gather(t, pair)", [768, "S"]),
        ("t = Shape(x) s = Cast<to = 7>(t) c = Identity(s)", ["N", "S", 768]),
        ("t = Shape(x) s = Cast<to = 1>(t) c = Cast<to = 7>(s)", ["?", "?", "?"]),
        ("t = Shape(x) s = Gather(t, pair) c = Mul(s, two)", [1536, "?"]),
        ("t = Shape(x) s = Gather(t, last) c = Div(s, two)", [384]),
        ("t = Shape(x) s = Gather(t, last) c = Add(s, two)", [770]),
        ("t = Shape(x) s = Gather(t, last) c = Sub(s, two)", [766]),
        ("t = Shape(x) s = Gather(t, last) v = Squeeze(s, zero) c = Unsqueeze(v, zero)", [768]),
        ("c = Abs(pair)", ["?", "?"]),
        ("t = Shape(x) c = Gather(t, given)", ["?", "?"]),
        ("c = Gather(grid, i)", ["?", "?", "?"]),
        ("c = Abs(some)", ["?"]),
        ("t = Shape(x) g = Gather(t, table) c = Gather(g, i)", ["?", "?"]),
    ],
)
def test_what_shapes_are_made_of(steps, shape):
    text = f"""g (float[N,S,768] x, int64[2] given, int64[2,3] grid, int64[M] some) => (float[?] y)
        <int64 i = {{0}}, int64[1,2] table = {{0, 1}}, int64[1] zero = {{0}},
         int64[1] one = {{1}}, int64[1] two = {{2}},
         int64[1] big = {{99}}, int64[2] pair = {{-1, 1}}, int64[1] last = {{2}}>
        {{ {steps} y = ConstantOfShape(c) }}"""
    graph = bringup_onnx.from_proto(model_of(text, opset=17)).graph
    ir.infer_shapes(graph)
    desc = graph.find("onnx::ConstantOfShape")[0].output.desc
    got = None if desc is None else ["?" if is_unknown(size) else size for size in desc.shape]
    assert got == shape


def test_an_expansion_takes_what_is_known_of_either():
    text = """g (float[1,4,N,M] x, float[N,1,K,M] z) => (float[?,?,?,?] y)
        { c = Shape(z) y = Expand(x, c) }"""
    assert inferred(text, "onnx::Expand") == ["N", 4, "?", "M"]


def test_what_a_file_states_is_kept():
    text = HEADS.replace("(float[?,?,?,?] y)", "(float[A,S,12,D] y)")
    assert inferred(text) == ["A", "S", 12, "D"]


def test_the_search_ends():
    steps = " ".join(f"c{i + 1} = Add(c{i}, c{i})" for i in range(200))
    text = f"g (float[N,S] x) => (float[?,?] y) {{ c0 = Shape(x) {steps} y = Reshape(x, c200) }}"
    assert inferred(text) == ["?", "?"]


# Against onnxruntime

CANNOT_RUN = (
    onnxruntime_errors.Fail,
    onnxruntime_errors.InvalidArgument,
    onnxruntime_errors.RuntimeException,
)
SIZES = {"N": st.sampled_from([0, 1, 3]), "M": st.sampled_from([0, 1, 2])}


@st.composite
def programs(draw):
    """A model that computes a shape and uses it; sizes for the names."""
    dims = [draw(st.sampled_from(["N", "M", 2, 3, 1])) for _ in range(draw(st.integers(1, 3)))]
    other = [draw(st.sampled_from(["N", "M", 2, 0])) for _ in range(draw(st.integers(1, 3)))]
    nodes = [helper.make_node("Shape", ["x"], ["tx"]), helper.make_node("Shape", ["z"], ["tz"])]
    constants = []

    def constant(values):
        constants.append(numpy_helper.from_array(np.array(values, np.int64), f"k{len(constants)}"))
        return constants[-1].name

    parts = []
    for number in range(draw(st.integers(1, 3))):
        source, rank = draw(st.sampled_from([("tx", len(dims)), ("tz", len(other))]))
        kind = draw(st.sampled_from(["Gather", "Slice", "number", "scalar", "Mul"]))
        name = f"p{number}"
        place = draw(st.integers(-rank, rank - 1))
        if kind == "number":
            name = constant([draw(st.sampled_from([-1, 0, 1, 2, 3]))])
        elif kind == "scalar":
            nodes.append(helper.make_node("Gather", [source, constant(place)], [f"s{number}"]))
            nodes.append(helper.make_node("Unsqueeze", [f"s{number}", constant([0])], [name]))
        elif kind == "Slice":
            ends = [constant([place]), constant([draw(st.integers(-3, 4))])]
            nodes.append(helper.make_node("Slice", [source, *ends], [name]))
        else:
            nodes.append(helper.make_node("Gather", [source, constant([place])], [name]))
        if kind == "Mul":
            nodes.append(helper.make_node("Mul", [name, constant([2])], [f"{name}m"]))
            name = f"{name}m"
        parts.append(name)
    nodes.append(helper.make_node("Concat", parts, ["shape"], axis=0))
    user = draw(st.sampled_from(["Reshape", "Expand", "ConstantOfShape"]))
    inputs = ["shape"] if user == "ConstantOfShape" else ["x", "shape"]
    more = {"allowzero": draw(st.integers(0, 1))} if user == "Reshape" else {}
    nodes.append(helper.make_node(user, inputs, ["y"], **more))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*item) for item in (("x", 1, dims), ("z", 1, other))],
        [helper.make_tensor_value_info("y", 1, None)],
        constants,
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return proto, dims, other, {name: draw(size) for name, size in SIZES.items()}


@settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(programs())
def test_no_shape_is_wrong(case):
    proto, dims, other, sizes = case
    graph = bringup_onnx.from_proto(proto).graph
    try:
        ir.infer_shapes(graph)
    except PassError:
        return  # onnx refuses the model
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    feeds = {
        name: np.zeros([sizes.get(dim, dim) for dim in shape], np.float32)
        for name, shape in (("x", dims), ("z", other))
    }
    try:
        session = onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        (result,) = session.run(None, feeds)
    except CANNOT_RUN:  # what it computes is no shape for these sizes
        return
    desc = graph.outputs[0].desc
    assert desc is not None
    got = [sizes.get(str(size), size) for size in desc.shape]
    assert len(got) == result.ndim
    for size, actual in zip(got, result.shape, strict=True):
        assert not isinstance(size, int) or size == actual, f"{desc} is {result.shape}"
