"""Operators that return what they are given, and casts."""

import numpy as np
import pytest
from tests.unit.compiler.onnx.library.support import check

ONE_INPUT = "g (float[N,3] x) => (float[N,3] y) "


@pytest.mark.parametrize(
    "call",
    [
        "Add(a, zero)",
        "Add(zero, a)",
        "Sub(a, zero)",
        "Mul(a, one)",
        "Mul(one, a)",
        "Div(a, one)",
        "Add(a, zeros)",
        "Mul(row, a)",
        "Identity(a)",
        "Dropout(a)",
        "Dropout(a, half, no)",
        "Dropout(a, zero, yes)",
    ],
)
def test_what_returns_its_operand_is_dropped(call):
    constants = (
        "<float zero = {0}, float one = {1}, float[1,3] zeros = {0, 0, 0}, float[3] row ="
        " {1, 1, 1}, float half = {0.5}, bool no = {0}, bool yes = {1}>"
    )
    text = f"{ONE_INPUT} {constants} {{ a = Relu(x) b = {call} y = Neg(b) }}"
    check(text, ["Relu", "Neg"], "DropNoOps")


@pytest.mark.parametrize(
    "call",
    [
        "Sub(zero, a)",
        "Div(one, a)",
        "Add(a, one)",
        "Mul(a, zero)",
        "Add(a, mixed)",
        "Dropout(a, half, flag)",
    ],
)
def test_other_numbers_stay(call):
    constants = (
        "<float zero = {0}, float one = {1}, float half = {0.5}, float[3] mixed = {0, 0, 1}>"
    )
    text = (
        f"g (float[N,3] x, bool flag) => (float[N,3] y) {constants} {{ a = Relu(x) b = {call} "
        "y = Neg(b) }"
    )
    feeds = {"x": np.ones((2, 3), np.float32), "flag": np.array(False)}
    name = call.partition("(")[0]
    check(text, ["Relu", name, "Neg"], "DropNoOps", feeds=feeds)


@pytest.mark.parametrize("zeros", ["float[1,1,1] z = {0}", "float[4,1] z = {0, 0, 0, 0}"])
def test_a_zero_that_changes_the_shape_stays(zeros):
    text = (
        f"g (float[M,3] x) => (float y) <{zeros}> {{ a = Add(x, z) y = ReduceSum<keepdims=0>(a) }}"
    )
    check(text, ["Add", "ReduceSum"], "DropNoOps", feeds={"x": np.ones((1, 3), np.float32)})


def test_a_column_of_zeros_stays_where_the_rows_may_be_one():
    text = (
        "g (float[M,3] x) => (float[4,3] y) <float[4,1] z = {0,0,0,0}> { a = Add(x, z) y = Abs(a) }"
    )
    check(text, ["Add", "Abs"], "DropNoOps", feeds={"x": np.ones((1, 3), np.float32)})


@pytest.mark.parametrize(("zero", "fires"), [("float[1] z = {0}", False), ("float z = {0}", True)])
def test_a_zero_with_dimensions_stays_where_the_rank_is_unknown(zero, fires):
    text = f"""g (float[3] x, int64[R] s) => (float y) <{zero}> {{
        a = Reshape(x, s) b = Add(a, z) y = ReduceSum<keepdims = 0>(b) }}"""
    feeds = {"x": np.ones(3, np.float32), "s": np.array([-1])}
    middle = [] if fires else ["Add"]
    check(text, ["Reshape", *middle, "ReduceSum"], "DropNoOps", feeds=feeds)


def test_results_and_inputs_keep_their_names():
    text = """g (float[2] x) => (float[2] y, float[2] z) <float one = {1}> {
        y = Mul(x, one) z = Identity(y) }"""
    after, _ = check(text, ["Identity", "Identity"], "DropNoOps")
    assert {name for node in after.graph.node for name in node.output} == {"y", "z"}


def test_an_identity_that_only_names_a_result_stays_as_it_was():
    text = "g (float[2] x) => (float[2] y) { y = Identity(x) }"
    _, report = check(text, ["Identity"], "DropNoOps")
    assert report.matches == {"OnnxLibraryDropNoOps": 0}


def test_the_mask_of_a_dropout_is_still_computed():
    text = "g (float[2] x) => (float[2] y, bool[2] m) { a = Relu(x) b, m = Dropout(a) y = Neg(b) }"
    after, _ = check(text, ["Relu", "Dropout", "Neg"], "DropNoOps")
    neg = next(node for node in after.graph.node if node.op_type == "Neg")
    assert list(neg.input) == ["a"]


def test_a_zero_in_a_branch_is_found():
    text = """g (bool f, float[2] x) => (float[2] y) <float zero = {0}> {
        y = If(f) <then_branch = t () => (float[2] p) { q = Add(x, zero) p = Neg(q) },
                   else_branch = e () => (float[2] r) { r = Abs(x) }> }"""
    _, report = check(text, ["If"], "DropNoOps")
    assert sum(item.matches for item in report.results) == 1


FLOAT, INT64, HALF, DOUBLE, INT32, BOOL, INT8, UINT8 = 1, 7, 10, 11, 6, 9, 3, 2


def casts(source, *targets, result):
    steps, value = [], "x"
    for number, target in enumerate(targets):
        name = "y" if number == len(targets) - 1 else f"t{number}"
        steps.append(f"{name} = Cast<to = {target}>({value})")
        value = name
    return f"g ({source}[4] x) => ({result}[4] y) {{ {' '.join(steps)} }}"


@pytest.mark.parametrize(
    ("source", "targets", "result", "left"),
    [
        ("float16", (FLOAT, DOUBLE), "double", 1),
        ("int8", (INT32, FLOAT), "float", 1),
        ("uint8", (INT32, INT8), "int8", 1),
        ("float16", (FLOAT, HALF), "float16", None),
        ("int32", (DOUBLE, FLOAT), "float", 1),
        ("float", (DOUBLE, HALF), "float16", 1),
        ("bool", (INT32, FLOAT, DOUBLE), "double", 1),
        ("int64", (FLOAT, HALF), "float16", 2),
        ("double", (FLOAT, HALF), "float16", 2),
        ("float", (HALF, FLOAT), "float", 2),
        ("float", (INT32, FLOAT), "float", 2),
        ("int32", (INT8, INT32), "int32", 2),
        ("float", (DOUBLE, INT8), "int8", 2),
        ("int8", (FLOAT, UINT8), "uint8", 2),
        ("int64", (BOOL, INT64), "int64", 2),
    ],
)
def test_a_cast_of_a_cast_goes_where_the_first_loses_nothing(source, targets, result, left):
    numbers = np.array(
        [0, 1, 100, 33], {"float": "float32", "double": "float64"}.get(source, source)
    )
    expected = ["Identity"] if left is None else ["Cast"] * left
    text = casts(source, *targets, result=result)
    check(text, expected, "MergeCasts", feeds={"x": numbers})


def test_rounding_twice_is_not_rounding_once():
    """The case that rewriting any source of float32 -> float16 would get wrong."""
    number = np.array([1 + 2.0**-11 + 2.0**-30] * 4)
    assert np.float16(number[0]) != np.float16(np.float32(number[0]))
    check(
        casts("double", FLOAT, HALF, result="float16"),
        ["Cast"] * 2,
        feeds={"x": number},
        tolerance=0,
    )


@pytest.mark.parametrize(
    ("value", "target", "result", "fires"),
    [
        ("<value = float[1] {2.5}>", DOUBLE, "double", True),
        ("", INT64, "int64", True),
        ("<value = int64[1] {3}>", FLOAT, "float", True),
        ("<value = float[1] {2.5}>", BOOL, "bool", True),
        ("<value = float[1] {2.5}>", INT64, "int64", False),
        ("<value = int64[1] {300}>", INT8, "int8", False),
    ],
)
def test_a_cast_of_a_filled_tensor_fills_with_the_other_number(value, target, result, fires):
    text = (
        f"g (int64[2] s) => ({result}[A,B] y) {{ a = ConstantOfShape{value}(s) "
        f"y = Cast<to = {target}>(a) }}"
    )
    expected = ["ConstantOfShape"] if fires else ["ConstantOfShape", "Cast"]
    check(text, expected, "MergeCasts", feeds={"s": np.array([2, 3])})
