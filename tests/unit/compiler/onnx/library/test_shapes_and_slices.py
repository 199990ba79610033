"""Reshapes, transpositions, slices, scatters, and products between reshapes."""

import numpy as np
import onnx
import pytest
from tests.unit.compiler.onnx.library.support import check
from tests.unit.compiler.onnx.support import model_of

from bringup import compiler

BIG = 9223372036854775807


def ints(name, *numbers):
    return f"int64[{len(numbers)}] {name} = {{{', '.join(map(str, numbers))}}}"


@pytest.mark.parametrize(
    ("x", "first", "second", "left"),
    [
        ("float[2,6]", (3, 4), (4, 3), 1),
        ("float[2,6]", (3, 4), (-1, 2), 1),
        ("float[2,6]", (3, 4), (2, 6), 0),
        ("float[2,6]", (3, 4), (0, 2, 2), 1),
        ("float[N,6]", (-1, 3, 2), (0, 6), 1),
        ("float[N,6]", (-1, 3, 2), (0, -1), 2),
        ("float[N,6]", (3, -1, 2), (-1, 6), 1),
        ("float[0,6]", (3, 0, 2), (0, 0, 1), 2),
    ],
)
def test_a_reshape_of_a_reshape(x, first, second, left):
    rank = len(second)
    text = f"""g ({x} x) => (float[{",".join("?" * rank)}] y)
        <{ints("s", *first)}, {ints("t", *second)}> {{
        a = Reshape(x, s) b = Reshape(a, t) y = Neg(b) }}"""
    if "0,6" in x:  # a size 0 is kept
        text = text.replace("Reshape(x, s)", "Reshape<allowzero = 1>(x, s)")
    check(text, ["Reshape"] * left + ["Neg"], "MergeReshapes", size=3)


def test_a_reshape_with_a_size_of_zero_says_so():
    text = f"""g (float[0,6] x) => (float[?,?] y) <{ints("s", 0, 3, 2)}, {ints("t", 0, 5)}> {{
        a = Reshape<allowzero = 1>(x, s) b = Reshape<allowzero = 1>(a, t) y = Neg(b) }}"""
    after, _ = check(text, ["Reshape", "Neg"], "MergeReshapes")
    assert after.graph.node[0].attribute[0].name == "allowzero"


def test_a_kept_size_is_taken_from_the_shape_in_between():
    text = f"""g (float[2,6] x) => (float[?,?] y) <{ints("s", 3, 4)}, {ints("t", 0, 4)}> {{
        a = Reshape(x, s) b = Reshape(a, t) y = Neg(b) }}"""
    after, _ = check(text, ["Reshape", "Neg"], "MergeReshapes")
    assert {tuple(item.dims) for item in after.graph.initializer} == {(2,)}


def test_an_intermediate_value_that_others_read_stays():
    text = f"""g (float[2,6] x) => (float[?,?] y, float[?,?] z)
        <{ints("s", 3, 4)}, {ints("t", 4, 3)}> {{
        z = Reshape(x, s) b = Reshape(z, t) y = Neg(b) }}"""
    check(text, ["Reshape", "Reshape", "Neg"], "MergeReshapes")


@pytest.mark.parametrize(
    ("x", "axis", "fires"),
    [
        ("float[2,3,4]", 1, True),
        ("float[2,3,4]", -1, True),
        ("float[2,3,4]", 3, True),
        ("float[N,3,4]", 1, True),
        ("float[N,3,4]", 0, True),
        ("float[2,3,N]", 2, True),
        ("float[N,M,4]", 1, False),
        ("float[N,0,4]", 1, False),
        ("float[0,3,4]", 1, True),
    ],
)
@pytest.mark.parametrize("opset", [12, 17])
def test_flatten_is_a_reshape_where_no_size_may_be_zero(x, axis, fires, opset):
    text = f"g ({x} x) => (float[?,?] y) {{ a = Flatten<axis = {axis}>(x) y = Neg(a) }}"
    if x == "float[0,3,4]" and opset < 14:
        fires = False
    check(text, ["Reshape" if fires else "Flatten", "Neg"], "MergeReshapes", opset=opset)


def test_a_dynamic_batch_of_none_is_flattened_alike():
    text = "g (float[N,3,4] x) => (float[?,?] y) { a = Flatten(x) y = Neg(a) }"
    feeds = {"x": np.ones((0, 3, 4), np.float32)}
    check(text, ["Reshape", "Neg"], "MergeReshapes", feeds=feeds)


@pytest.mark.parametrize(
    ("shape", "fires"), [("float[2,N]", True), ("float[2,6]", True), ("float[M,N]", False)]
)
def test_a_computed_shape_that_is_known_becomes_a_constant(shape, fires):
    text = f"""g (float[12] x, float[2,N] like) => ({shape} y)
        <{shape} a> {{ s = Shape(like) a = Reshape(x, s) y = Neg(a) }}"""
    feeds = {"x": np.arange(12, dtype=np.float32), "like": np.ones((2, 6), np.float32)}
    if shape == "float[M,N]":
        feeds["like"] = np.ones((2, 6), np.float32)
        text = text.replace("float[2,N] like", "float[M,N] like")
    left = ["Reshape", "Neg"] if fires else ["Shape", "Reshape", "Neg"]
    check(text, left, "MergeReshapes", feeds=feeds)


@pytest.mark.parametrize(
    ("shape", "fires"),
    [((2, 3), True), ((1, 1), True), ((3,), True), ((1, 2, 3), False), ((4, 2, 3), False)],
)
def test_an_expansion_to_the_same_shape_is_dropped(shape, fires):
    text = f"""g (float[2,3] x) => (float y) <{ints("s", *shape)}> {{
        a = Expand(x, s) y = ReduceSum<keepdims = 0>(a) }}"""
    check(text, ["ReduceSum"] if fires else ["Expand", "ReduceSum"], "MergeReshapes")


def test_an_expansion_that_may_stretch_a_dynamic_size_stays():
    text = f"""g (float[N,3] x) => (float[?,?] y) <{ints("s", 4, 3)}> {{
        a = Expand(x, s) y = Neg(a) }}"""
    check(text, ["Expand", "Neg"], "MergeReshapes", feeds={"x": np.ones((1, 3), np.float32)})


def test_a_squeeze_and_a_reshape_of_a_vector_are_nothing():
    text = f"""g (float[N] x) => (float[?] y) <{ints("s", -1)}> {{
        a = Squeeze(x) b = Reshape(a, s) y = Neg(b) }}"""
    for size in (1, 3):
        check(text, ["Neg"], "MergeReshapes", size=size)


@pytest.mark.parametrize(
    ("first", "second", "fires"),
    [
        ((1,), (0,), True),
        ((0,), (1,), True),
        ((1,), (1,), True),
        ((-1,), (0,), True),
        ((0, 3), (-1, 2), True),
        ((2, 0), (0,), True),
    ],
)
@pytest.mark.parametrize("opset", [12, 17])
def test_an_unsqueeze_of_an_unsqueeze_is_one(first, second, fires, opset):
    rank = 2 + len(first) + len(second)
    types = f"float[{','.join('?' * rank)}]"
    if opset < 13:
        text = f"""g (float[2,3] x) => ({types} y) {{ a = Unsqueeze<axes = {list(first)}>(x)
            y = Unsqueeze<axes = {list(second)}>(a) }}"""
    else:
        text = f"""g (float[2,3] x) => ({types} y) <{ints("s", *first)}, {ints("t", *second)}> {{
            a = Unsqueeze(x, s) y = Unsqueeze(a, t) }}"""
    check(text, ["Unsqueeze"], "MergeUnsqueezes", opset=opset)


@pytest.mark.parametrize(
    ("perms", "left"),
    [
        (("<perm=[0,1,2]>",), 0),
        (("<perm=[1,0,2]>",), 1),
        (("<perm=[1,2,0]>", "<perm=[2,0,1]>"), 0),
        (("<perm=[1,2,0]>", "<perm=[1,2,0]>"), 1),
        (("<perm=[1,2,0]>", ""), 1),
        (("", ""), 0),
        (("<perm=[1,2,0]>", "<perm=[1,2,0]>", "<perm=[1,2,0]>"), 0),
    ],
)
def test_transpositions_become_one_or_none(perms, left):
    steps, value = [], "x"
    for number, perm in enumerate(perms):
        steps.append(f"t{number} = Transpose{perm}({value})")
        value = f"t{number}"
    text = f"g (float[2,3,4] x) => (float[?,?,?] y) {{ {' '.join(steps)} y = Neg({value}) }}"
    check(text, ["Transpose"] * left + ["Neg"], "MergeTransposes")


@pytest.mark.parametrize(("sizes", "left"), [("", 0), ("[3]", 0), ("[2,2]", 1)])
def test_a_transposition_without_an_order_is_none_of_a_vector(sizes, left):
    text = f"g (float{sizes} x) => (float{sizes} y) {{ t = Transpose(x) y = Neg(t) }}"
    check(text, ["Transpose"] * left + ["Neg"], "MergeTransposes")


@pytest.mark.parametrize(
    ("x", "starts", "ends", "axes", "steps", "fires"),
    [
        ("float[4,3]", (0,), (4,), (0,), (1,), True),
        ("float[4,3]", (-9,), (BIG,), (-1,), (1,), True),
        ("float[N,3]", (0,), (BIG,), (0,), (1,), True),
        ("float[N,3]", (0,), (2147483647,), (0,), (1,), False),
        ("float[4,3]", (0,), (-1,), (0,), (1,), False),
        ("float[4,3]", (3,), (-9,), (0,), (-1,), False),
        ("float[4,3]", (0,), (9,), (0,), (2,), False),
        ("float[1,3]", (0,), (1,), (0,), (2,), False),
        ("float[N,3]", (-1,), (BIG,), (0,), (1,), False),
    ],
)
def test_a_slice_of_everything_is_dropped(x, starts, ends, axes, steps, fires):
    lists = ", ".join(
        ints(name, *given) for name, given in zip("seat", (starts, ends, axes, steps), strict=True)
    )
    text = f"g ({x} x) => (float[?,?] y) <{lists}> {{ b = Slice(x, s, e, a, t) y = Neg(b) }}"
    check(text, ["Neg"] if fires else ["Slice", "Neg"], "MergeSlices", size=5)


@pytest.mark.parametrize(
    ("x", "first", "second", "left"),
    [
        ("float[9,3]", (1, 8, 0, 1), (2, 5, 0, 1), 1),
        ("float[9,3]", (1, 8, 0, 1), (0, 2, 1, 1), 1),
        ("float[9,3]", (8, -99, 0, -1), (1, 99, 0, 3), 1),
        ("float[9,3]", (0, 9, 0, 2), (-1, -99, 0, -1), 1),
        ("float[9,3]", (0, 3, 0, 1), (5, 8, 0, 1), 1),
        ("float[9,3]", (-99, -99, 0, -1), (0, 9, 0, 1), 1),
        ("float[9,3]", (7, 2, 0, -2), (-99, -99, 0, -1), 2),
        ("float[9,3]", (-9, -99, 0, -1), (0, 9, 0, 1), 1),
        ("float[9,3]", (7, 2, 0, -1), (2, 0, 0, -1), 1),
        ("float[9,3]", (1, 8, 0, 1), (5, 2147483647, 0, -1), 2),
        ("float[N,3]", (1, 4, 0, 1), (1, BIG, 0, 1), 1),
        ("float[N,3]", (2, BIG, 0, 1), (1, 2, 0, 1), 1),
        ("float[N,3]", (2, BIG, 0, 1), (-1, BIG, 0, 1), 2),
        ("float[N,3]", (0, BIG, 0, 2), (1, 2, 0, 1), 2),
        ("float[N,3]", (0, BIG, 0, 2), (1, 2, -1, 1), 1),
        ("float[9,3]", (1, 8, 0, 1), (8, -99, 0, -1), 1),
    ],
)
def test_a_slice_of_a_slice_is_one_slice(x, first, second, left):
    lists = ", ".join(
        f"int64[1] {name}{i} = {{{number}}}"
        for i, four in enumerate((first, second))
        for name, number in zip("seat", four, strict=True)
    )
    text = f"""g ({x} x) => (float[?,?] y) <{lists}> {{
        b = Slice(x, s0, e0, a0, t0) c = Slice(b, s1, e1, a1, t1) y = Neg(c) }}"""
    for size in (1, 3, 7):
        check(text, ["Slice"] * left + ["Neg"], "MergeSlices", size=size)


def test_a_slice_of_an_axis_that_is_not_there_stays():
    """A model that is wrong: no pass fails over it."""
    text = "g (float[4] x) => (float[?] y) { b = Slice<starts = [0], ends = [1], axes = [%d]>(x) }"
    for axis in (1, -2):
        before = model_of((text % axis).replace("}", "y = Neg(b) }"), opset=9, ir_version=8)
        after = onnx.ModelProto.FromString(before.SerializeToString())
        compiler.onnx.register_library(["MergeSlices", "SlicesToSplit"])
        report = compiler.apply_passes(after)
        assert "an axis is none of the tensor" in str(report["OnnxLibraryMergeSlices"])
        assert after == before


def test_a_part_of_a_named_size_stays_in_version_10():
    """onnx infers the name of the whole size for it there."""
    text = """g (float[N,3] x) => (float[?,?] y)
        <int64[1] s = {0}, int64[1] e = {1}, int64[1] a = {0}>
        { b = Slice(x, s, e, a) y = Neg(b) }"""
    check(text, ["Slice", "Neg"], opset=10)


def halves(*ranges, axis=1, results=None):
    lists = "".join(f", {ints(f's{i}', a)}, {ints(f'e{i}', b)}" for i, (a, b) in enumerate(ranges))
    steps = " ".join(f"y{i} = Slice(x, s{i}, e{i}, a)" for i in range(len(ranges)))
    types = ", ".join(f"float[?,?] y{i}" for i in range(len(ranges)))
    return f"g (float[4,6] x) => ({types}) <{ints('a', axis)}{lists}> {{ {steps} }}"


@pytest.mark.parametrize("opset", [12, 17, 20])
@pytest.mark.parametrize(
    ("text", "fires"),
    [
        (halves((0, 3), (3, 6)), True),
        (halves((3, 6), (0, 3)), True),
        (halves((0, 1), (1, 5), (5, 99)), True),
        (halves((0, 2), (-2, 99), axis=0), True),
        (halves((0, 3), (0, 3), (3, 6)), True),
        (halves((0, 3), (4, 6)), False),
        (halves((0, 4), (3, 6)), False),
        (halves((0, 3), (3, 5)), False),
        (halves((0, 6)), False),
    ],
)
def test_slices_that_cut_an_axis_are_a_split(text, fires, opset):
    count = text.count("Slice(")
    expected = ["Split"] if fires else ["Slice"] * count
    if text == halves((0, 3), (0, 3), (3, 6)):
        expected = ["Split", "Identity"]  # two results of one value
    check(text, expected, "SlicesToSplit", opset=opset)


def test_slices_of_slices_are_split_again():
    text = f"""g (float[4] x) => (float[?] p, float[?] q, float[?] r)
        <{ints("zero", 0)}, {ints("one", 1)}, {ints("two", 2)}, {ints("four", 4)},
        {ints("a", 0)}> {{
        h = Slice(x, zero, two, a) r = Slice(x, two, four, a)
        p = Slice(h, zero, one, a) q = Slice(h, one, two, a) }}"""
    check(text, ["Split", "Split"], "SlicesToSplit")


ROWS = "int64[3,1] rows = {0, 1, 2}"


@pytest.mark.parametrize(
    ("rows", "attribute", "fires"),
    [
        (ROWS, "", True),
        (ROWS, '<reduction = "none">', True),
        (ROWS, '<reduction = "add">', False),
        ("int64[3,1] rows = {0, 2, 1}", "", False),
        ("int64[3,1] rows = {0, 1, 1}", "", False),
    ],
)
def test_a_scatter_into_all_rows_is_its_updates(rows, attribute, fires):
    text = f"""g (float[3,2] x, float[3,2] u) => (float[3,2] y) <{rows}> {{
        a = ScatterND{attribute}(x, rows, u) y = Neg(a) }}"""
    check(text, ["Neg"] if fires else ["ScatterND", "Neg"], "DropScatters")


def test_a_scatter_into_some_rows_stays():
    text = f"""g (float[4,2] x, float[3,2] u) => (float[4,2] y) <{ROWS}> {{
        a = ScatterND(x, rows, u) y = Neg(a) }}"""
    check(text, ["ScatterND", "Neg"], "DropScatters")


@pytest.mark.parametrize(
    ("axis", "start", "fires"), [(0, 0, True), (-2, 0, True), (1, 0, False), (0, 1, False)]
)
def test_a_scatter_into_a_range_of_all_rows_is_its_updates(axis, start, fires):
    text = f"""g (float[N,2] x, float[N,2] u) => (float[N,2] y)
        <int64 k = {{{axis}}}, int64 zero = {{{start}}}, int64 one = {{1}}, {ints("last", -1)}> {{
        s = Shape(x) n = Gather(s, k) r = Range(zero, n, one) i = Unsqueeze(r, last)
        a = ScatterND(x, i, u) y = Neg(a) }}"""
    rest = [] if fires else ["Shape", "Gather", "Range", "Unsqueeze", "ScatterND"]
    rows = {(1, 0): 2, (0, 1): 2}.get((axis, start), 3)
    feeds = {"x": np.ones((3, 2), np.float32), "u": np.full((rows, 2), 2, np.float32)}
    if not fires:
        text = text.replace("float[N,2] u", "float[M,2] u")
    check(text, [*rest, "Neg"], "DropScatters", feeds=feeds)


def product(a, b, left, right, out, *, result="float[?,?,?]"):
    parts = [ints("o", *out)]
    steps, names = [], ["a", "b"]
    for index, (name, shape) in enumerate((("a", left), ("b", right))):
        if shape:
            parts.append(ints(f"s{name}", *shape))
            steps.append(f"r{name} = Reshape({name}, s{name})")
            names[index] = f"r{name}"
    return f"""g ({a} a, {b} b) => ({result} y) <{", ".join(parts)}> {{
        {" ".join(steps)} m = MatMul({names[0]}, {names[1]}) y = Reshape(m, o) }}"""


@pytest.mark.parametrize(
    ("text", "fires"),
    [
        (product("float[2,3,4]", "float[4,5]", (6, 4), None, (2, 3, 5)), True),
        (product("float[2,3,4]", "float[1,4,5]", (6, 4), (4, 5), (2, 3, 5)), True),
        (product("float[2,3,4]", "float[2,4,5]", (2, 3, 4), (2, 4, 5), (2, 3, 5)), True),
        (
            product(
                "float[2,3,4,5]",
                "float[2,3,5,6]",
                (6, 4, 5),
                (6, 5, 6),
                (2, 3, 4, 6),
                result="float[?,?,?,?]",
            ),
            True,
        ),
        (product("float[2,3,4]", "float[4,5]", (6, 4), None, (3, 2, 5)), False),
        (product("float[4,4]", "float[4,4]", (2, 2, 4), None, (4, 4), result="float[?,?]"), True),
        (product("float[2,2]", "float[2,2]", (1, 4), (4, 1), (1, 1), result="float[?,?]"), False),
    ],
)
def test_a_product_between_reshapes(text, fires):
    kinds_before = ["Reshape"] * (text.count("Reshape(") - 1) + ["MatMul", "Reshape"]
    check(text, ["MatMul"] if fires else kinds_before, "MatMulWithoutReshapes")


def test_a_product_of_the_right_shape_and_other_numbers_stays():
    """onnxscript compares shapes alone, which are equal here."""
    text = product("float[2,2,2]", "float[2,2,2]", (4, 2), (2, 4), (2, 2, 4))
    check(text, ["Reshape", "Reshape", "MatMul", "Reshape"], "MatMulWithoutReshapes")


def test_a_product_that_is_read_elsewhere_stays():
    text = f"""g (float[2,3,4] a, float[4,5] b) => (float[?,?,?] y, float[6,5] m)
        <{ints("s", 6, 4)}, {ints("o", 2, 3, 5)}> {{
        r = Reshape(a, s) m = MatMul(r, b) y = Reshape(m, o) }}"""
    check(text, ["Reshape", "MatMul", "Reshape"], "MatMulWithoutReshapes")
