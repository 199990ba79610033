"""Min, Max, Relu and Clip; padding, normalization and biases of linear operators."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from tests.unit.compiler.onnx.library.support import assert_agree, check, compiled, kinds
from tests.unit.compiler.onnx.support import model_of

NUMBERS = np.array([-9, -2, -1, 0, 0.5, 1, 2, 3, 9, np.inf, -np.inf], np.float32)


def clips(*calls, dtype="float", constants="", opset=17, expected, feeds=None):
    text = f"g ({dtype}[N] x) => ({dtype}[N] y) <{constants}> {{ {' '.join(calls)} }}"
    given = NUMBERS if dtype == "float" else np.arange(-9, 9).astype(dtype)
    return check(
        text, expected, "MergeClips", opset=opset, feeds={"x": given if feeds is None else feeds}
    )


LIMITS = (
    "float m = {-1}, float z = {0}, float o = {1}, float t = {2}, float h = {3}, "
    "float[2] v = {1, 2}, float[1] w = {1}, float n = {nan}"
).replace("float n = {nan}", "float[1,1] ww = {1}")


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        (("a = Min(x, t)", "y = Min(a, o)"), ["Min"]),
        (("a = Max(t, x)", "y = Max(o, a, z)"), ["Max"]),
        (("a = Max(x, z)", "y = Min(a, o)"), ["Clip"]),
        (("a = Min(x, o)", "y = Max(a, z)"), ["Clip"]),
        (("a = Min(x, o)", "y = Max(a, t)"), ["Min", "Max"]),
        (("a = Max(x, t)", "y = Min(a, o)"), ["Max", "Min"]),
        (("a = Max(x, w)", "y = Min(t, a)"), ["Clip"]),
        (("a = Relu(x)", "y = Relu(a)"), ["Relu"]),
        (("a = Relu(x)", "y = Clip(a, m, t)"), ["Clip"]),
        (("a = Relu(x)", "y = Clip(a, , t)"), ["Clip"]),
        (("a = Relu(x)", "y = Clip(a, m, m)"), ["Clip"]),
        (("a = Clip(x, m, o)", "y = Relu(a)"), ["Clip"]),
        (("a = Clip(x, m, m)", "y = Relu(a)"), ["Clip"]),
        (("a = Clip(x, z, o)", "y = Clip(a, t, h)"), ["Clip"]),
        (("a = Clip(x, t, h)", "y = Clip(a, z, o)"), ["Clip"]),
        (("a = Clip(x, m, t)", "y = Clip(a, z, h)"), ["Clip"]),
        (("a = Clip(x)", "y = Clip(a, z)"), ["Clip"]),
        (("a = Clip(x, t, z)", "y = Clip(a, z, h)"), ["Clip", "Clip"]),
        (("a = Relu(x)", "b = Clip(a, z, h)", "c = Relu(b)", "y = Clip(c, o, t)"), ["Clip"]),
    ],
)
def test_chains_of_limits_become_one(calls, expected):
    clips(*calls, constants=LIMITS, expected=expected)


def test_a_limit_that_adds_a_dimension_stays():
    text = f"g (float[N] x) => (float[1,M] y) <{LIMITS}> {{ a = Max(x, ww) y = Min(a, t) }}"
    check(text, ["Max", "Min"], "MergeClips", feeds={"x": NUMBERS})


def test_limits_that_are_tensors_stay_a_min_and_a_max():
    text = f"g (float[2] x) => (float[2] y) <{LIMITS}> {{ a = Max(x, v) y = Min(a, t) }}"
    check(text, ["Max", "Min"], "MergeClips")


def test_tensors_of_limits_are_joined_where_that_is_no_larger():
    text = """g (float[2,2] x) => (float[2,2] y)
        <float[2] row = {1, 2}, float[2,1] column = {0, 3}, float[2] other = {0, 5}> {
        a = Max(x, row) b = Max(a, other) y = Max(b, column) }"""
    check(text, ["Max"], "MergeClips")


def test_a_limit_that_is_not_a_number_stays():
    proto = model_of(
        f"g (float[N] x) => (float[N] y) <{LIMITS}> {{ a = Max(x, z) y = Min(a, o) }}", ir_version=8
    )
    for tensor in proto.graph.initializer:
        if tensor.name == "o":
            tensor.CopyFrom(numpy_helper.from_array(np.float32("nan"), "o"))
    after, _ = compiled(proto, "MergeClips")
    assert kinds(after) == ["Max", "Min"]


@pytest.mark.parametrize(("opset", "left"), [(11, 2), (12, 1), (17, 1)])
def test_a_clip_needs_its_limits_as_inputs(opset, left):
    clips(
        "a = Max(x, z)",
        "y = Min(a, o)",
        constants=LIMITS,
        opset=opset,
        expected=["Clip"] if left == 1 else ["Max", "Min"],
    )


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("(x, l)", "(a)", ["Clip", "Clip"]),
        ("(x)", "(a, , h)", ["Clip", "Clip"]),
        ("(x, l, h)", "(a, l, h)", ["Clip"]),
        ("(x, , z)", "(a)", ["Clip"]),
    ],
)
def test_no_limit_and_an_infinite_one_differ(first, second, expected):
    """onnxruntime limits float64 to its largest numbers where there is no limit."""
    text = f"""g (double[N] x) => (double[N] y)
        <double l = {{-inf}}, double h = {{inf}}, double z = {{0}}>
        {{ a = Clip{first} y = Clip{second} }}"""
    feeds = {"x": np.array([-np.inf, -1.0, np.inf])}
    check(text, expected, "MergeClips", feeds=feeds, tolerance=0)


def test_integers_are_clipped_exactly():
    large = 2**53 + 1
    text = f"""g (int64[N] x) => (int64[N] y) <int64 l = {{-{large}}}, int64 h = {{{large}}}> {{
        a = Max(x, l) y = Min(a, h) }}"""
    feeds = {"x": np.array([2**60, -(2**60), 5])}
    check(text, ["Clip"], "MergeClips", feeds=feeds, tolerance=0)


def test_a_clip_of_nan_is_nan_as_its_parts_are():
    with_nan = np.array([np.nan, 1.0], np.float32)
    for calls in (("a = Max(x, z)", "y = Min(a, o)"), ("a = Min(x, o)", "y = Max(a, z)")):
        clips(*calls, constants=LIMITS, expected=["Clip"], feeds=with_nan)


# Padding


def convolution(pad, conv="", *, opset=17, pads="int64[8] p = {0,0,1,2,0,0,3,0}", more=""):
    return f"""g (float[1,2,5,6] x, float[3,2,2,3] w) => (float[?,?,?,?] y)
        <{pads}{more}> {{ a = Pad{pad} y = Conv{conv}(a, w) }}"""


@pytest.mark.parametrize(
    ("text", "fires"),
    [
        (convolution("(x, p)"), True),
        (convolution("(x, p, z)", more=", float z = {0}"), True),
        (convolution("(x, p)", "<pads = [1,0,0,1], strides = [2,1], dilations = [1,2]>"), True),
        (convolution("(x, p)", '<auto_pad = "VALID">'), True),
        (convolution("(x, p)", '<auto_pad = "SAME_UPPER", strides = [2,2]>'), True),
        (convolution("(x, p)", '<auto_pad = "SAME_LOWER", strides = [2,3]>'), True),
        (convolution("(x, p, z)", more=", float z = {1}"), False),
        (convolution('<mode = "reflect">(x, p)'), False),
        (
            convolution("(x, p)", pads="int64[8] p = {0,1,1,2,0,1,3,0}").replace("w[3,2", "w[3,4"),
            None,
        ),
        (convolution("(x, p)", pads="int64[8] p = {0,0,-1,2,0,0,3,0}"), False),
    ],
)
def test_a_padding_goes_into_the_convolution(text, fires):
    if fires is None:  # channels are padded
        text, fires = text.replace("float[3,2,2,3] w", "float[3,4,2,3] w"), False
    check(text, ["Conv"] if fires else ["Pad", "Conv"], "PadIntoConv")


def test_a_padding_of_named_axes_goes_into_the_convolution():
    text = convolution(
        "(x, p, , axes)", pads="int64[4] p = {1,2,3,0}", more=", int64[2] axes = {-2,3}"
    )
    check(text, ["Conv"], "PadIntoConv", opset=18)


def test_a_padding_that_others_read_stays_for_them():
    text = """g (float[1,2,5,6] x, float[3,2,2,3] w) => (float[?,?,?,?] y, float[?,?,?,?] a)
        <int64[8] p = {0,0,1,2,0,0,3,0}> { a = Pad(x, p) y = Conv(a, w) }"""
    check(text, ["Pad", "Conv"], "PadIntoConv")


@pytest.mark.parametrize(
    ("value", "point", "fires"),
    [("", "", True), (", v", ", zp", True), ("", ", zp", False), (", v", "", False)],
)
def test_quantized_convolutions_pad_with_their_zero_point(value, point, fires):
    text = f"""g (uint8[1,1,4,4] x, uint8[1,1,2,2] w) => (int32[?,?,?,?] y)
        <int64[8] p = {{0,0,1,1,0,0,1,1}}, uint8 v = {{7}}, uint8 zp = {{7}}> {{
        a = Pad(x, p{value}) y = ConvInteger(a, w{point}) }}"""
    generator = np.random.default_rng(0)
    feeds = {
        "x": generator.integers(0, 20, (1, 1, 4, 4)).astype(np.uint8),
        "w": generator.integers(0, 20, (1, 1, 2, 2)).astype(np.uint8),
    }
    expected = ["ConvInteger"] if fires else ["Pad", "ConvInteger"]
    check(text, expected, "PadIntoConv", feeds=feeds, tolerance=0)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]),
    st.tuples(st.integers(3, 7), st.integers(3, 7)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.sampled_from(["", ", kernel_shape = [{},{}]"]),
)
def test_an_automatic_padding_becomes_numbers(mode, sizes, kernel, strides, stated):
    shape = stated.format(*kernel)
    text = f"""g (float[1,2,{sizes[0]},{sizes[1]}] x, float[3,2,{kernel[0]},{kernel[1]}] w)
        => (float[?,?,?,?] y)
        {{ y = Conv<auto_pad = "{mode}", strides = [{strides[0]},{strides[1]}]{shape}>(x, w) }}"""
    after, _ = check(text, ["Conv"], "ExplicitPads")
    names = [item.name for item in after.graph.node[0].attribute]
    assert "pads" in names
    assert "auto_pad" not in names


def test_an_automatic_padding_of_integers_becomes_numbers():
    text = """g (uint8[1,1,4,4] x, uint8[1,1,2,2] w) => (int32[?,?,?,?] y)
        { y = ConvInteger<auto_pad = "SAME_UPPER">(x, w) }"""
    feeds = {"x": np.arange(16, dtype=np.uint8).reshape(1, 1, 4, 4)}
    feeds["w"] = feeds["x"][..., :2, :2]
    after, _ = check(text, ["ConvInteger"], "ExplicitPads", feeds=feeds, tolerance=0)
    pads = {item.name: list(item.ints) for item in after.graph.node[0].attribute}["pads"]
    assert pads == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("shape", "attributes", "reason"),
    [
        ("1,2,N,6", 'auto_pad = "SAME_UPPER"', "known only at run time"),
        ("1,2,5,6", 'auto_pad = "SAME_UPPER", dilations = [2,1]', "dilations"),
        ("1,2,5,6", "pads = [1,1,1,1]", "explicit"),
        ("1,2,5,6", 'auto_pad = "NOTSET"', "explicit"),
    ],
)
def test_a_padding_that_is_not_known_or_is_stated_stays(shape, attributes, reason):
    text = f"""g (float[{shape}] x, float[3,2,2,3] w) => (float[?,?,?,?] y)
        {{ y = Conv<{attributes}>(x, w) }}"""
    before = model_of(text, ir_version=8)
    after, report = compiled(before, "ExplicitPads")
    assert after == before
    assert reason in str(report["OnnxLibraryExplicitPads"].near_misses[0])


# Normalization


def normalized(kind, weight, inputs, channels, *, bias=None, opset=17, share=False, **attributes):
    """A linear operator with constant weights behind which a BatchNormalization stands."""
    generator = np.random.default_rng(3)
    arrays = {
        "w": generator.standard_normal(weight),
        "s": generator.standard_normal(channels),
        "b": generator.standard_normal(channels),
        "m": generator.standard_normal(channels),
        "v": generator.random(channels) + 0.5,
    }
    if bias is not None:
        arrays["c"] = generator.standard_normal(bias)
    named = ["x", "w", *(["c"] if bias is not None else [])]
    nodes = [
        helper.make_node(kind, named, ["t"], **attributes),
        helper.make_node("BatchNormalization", ["t", "s", "b", "m", "v"], ["y"], epsilon=1e-3),
    ]
    outputs = [helper.make_tensor_value_info("y", 1, [None] * len(inputs))]
    if share:
        nodes.append(helper.make_node("Neg", ["w"], ["shared"]))
        outputs.append(helper.make_tensor_value_info("shared", 1, list(weight)))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, list(inputs))],
        outputs,
        [numpy_helper.from_array(np.asarray(a, np.float32), n) for n, a in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("opset", [9, 13, 17])
@pytest.mark.parametrize(
    ("kind", "weight", "inputs", "channels", "keywords"),
    [
        ("Conv", (4, 2, 3, 3), (1, 2, 6, 6), 4, {}),
        ("Conv", (4, 2, 3, 3), (1, 2, 6, 6), 4, {"bias": 4, "strides": [2, 1]}),
        ("Conv", (4, 1, 3), (1, 2, 6), 4, {"group": 2, "bias": 4}),
        ("ConvTranspose", (4, 3, 2, 2), (1, 4, 5, 5), 3, {"bias": 3}),
        ("ConvTranspose", (4, 3, 2, 2), (1, 4, 5, 5), 6, {"group": 2}),
        ("Gemm", (5, 4), (3, 5), 4, {"bias": 4, "alpha": 0.5, "beta": 2.0}),
        ("Gemm", (4, 5), (3, 5), 4, {"bias": (1, 4), "transB": 1, "beta": -1.0}),
        ("Gemm", (5, 4), (5, 3), 4, {"bias": 1, "transA": 1}),
    ],
)
def test_a_normalization_goes_into_the_weights(kind, weight, inputs, channels, keywords, opset):
    before = normalized(kind, weight, inputs, channels, opset=opset, **keywords)
    after, report = compiled(before, "BatchNormIntoWeights")
    assert kinds(after) == [kind], str(report)
    assert_agree(before, after, tolerance=1e-4)


@pytest.mark.parametrize(
    "keywords",
    [{"bias": (3, 1)}, {"bias": (3, 4)}, {"share": True}],
)
def test_other_biases_and_shared_weights_stay(keywords):
    before = normalized("Gemm", (5, 4), (3, 5), 4, **keywords)
    after, _ = compiled(before, "BatchNormIntoWeights")
    assert kinds(after)[:2] == ["Gemm", "BatchNormalization"]


def test_what_is_normalized_and_read_elsewhere_stays():
    before = normalized("Conv", (4, 2, 3, 3), (1, 2, 6, 6), 4)
    before.graph.output.append(helper.make_tensor_value_info("t", 1, [1, 4, 4, 4]))
    after, _ = compiled(before, "BatchNormIntoWeights")
    assert kinds(after) == ["Conv", "BatchNormalization"]


def test_a_variance_that_is_not_positive_stays():
    before = normalized("Conv", (4, 2, 3, 3), (1, 2, 6, 6), 4)
    for tensor in before.graph.initializer:
        if tensor.name == "v":
            tensor.CopyFrom(numpy_helper.from_array(np.full(4, -1, np.float32), "v"))
    after, _ = compiled(before, "BatchNormIntoWeights")
    assert kinds(after) == ["Conv", "BatchNormalization"]


# Biases


@pytest.mark.parametrize(
    ("kind", "opset", "numbers", "fires"),
    [
        ("Conv", 17, (0, 0), True),
        ("ConvTranspose", 17, (0, 0), True),
        ("Conv", 17, (0, 1), False),
        ("Gemm", 17, (0, 0), True),
        ("Gemm", 10, (0, 0), False),
        ("Gemm", 11, (0, 0), True),
    ],
)
def test_a_bias_of_zeros_is_dropped(kind, opset, numbers, fires):
    weight, x = ("float[2,2]", "float[2,2]") if kind == "Gemm" else ("float[2,2,1]", "float[1,2,4]")
    result = "float[?,?]" if kind == "Gemm" else "float[?,?,?]"
    text = f"""g ({x} x, {weight} w) => ({result} y)
        <float[2] c = {{{numbers[0]}, {numbers[1]}}}> {{
        y = {kind}(x, w, c) }}"""
    after, _ = check(text, [kind], "DropZeroBiases", opset=opset)
    assert len(after.graph.node[0].input) == (2 if fires else 3)
    assert len(after.graph.initializer) == (0 if fires else 1)


def test_a_normalization_by_what_is_computed_stays():
    before = normalized("Conv", (4, 2, 3, 3), (1, 2, 6, 6), 4)
    before.graph.input.append(helper.make_tensor_value_info("m", 1, [4]))
    after, report = compiled(before, "BatchNormIntoWeights")
    assert kinds(after) == ["Conv", "BatchNormalization"]
    assert "a parameter is no constant" in str(report)
