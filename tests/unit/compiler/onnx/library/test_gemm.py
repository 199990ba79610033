"""MatMul and Add as a Gemm: registered by name only."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper
from tests.unit.compiler.onnx.library.support import assert_agree, check, compiled, kinds
from tests.unit.compiler.onnx.support import model_of

from bringup import compiler, passes

NAME = "MatMulAddToGemm"


def gemm(text, *, opset=17, size=3):
    """The attributes of the only operator that is left, a Gemm."""
    after, _ = check(text, ["Gemm"], NAME, opset=opset, size=size)
    return {item.name: item.i for item in after.graph.node[0].attribute if item.i}


def stays(text, reason, *, opset=17):
    before = model_of(text, opset=opset, ir_version=8)
    after, report = compiled(before, NAME)
    assert after == before
    assert reason in str(report[f"OnnxLibrary{NAME}"].near_misses[0])


def test_the_rule_is_registered_by_name_only():
    names = compiler.onnx.register_library()
    assert f"OnnxLibrary{NAME}" not in names
    assert f"OnnxLibrary{NAME}" not in [item.pass_name for item in passes.get_registered_passes()]
    assert compiler.onnx.register_library([NAME]) == (f"OnnxLibrary{NAME}",)


@pytest.mark.parametrize(
    "bias", ["float[5]", "float[1]", "float", "float[M,5]", "float[M,1]", "float[1,5]"]
)
@pytest.mark.parametrize("order", ["t, c", "c, t"])
@pytest.mark.parametrize("opset", [7, 17])
def test_a_product_and_a_bias_are_a_gemm(bias, order, opset):
    text = f"""g (float[M,4] a, float[4,5] b, {bias} c) => (float[M,5] y) {{
        t = MatMul(a, b) y = Add({order}) }}"""
    assert gemm(text, opset=opset) == {}


@pytest.mark.parametrize("perm", ["<perm = [1, 0]>", ""])
def test_transpositions_in_front_become_attributes(perm):
    text = """g (float[4,M] a, float[5,4] b, float[5] c) => (float[M,5] y) {
        p = Transpose%s(a) q = Transpose%s(b) t = MatMul(p, q) y = Add(t, c) }"""
    assert gemm(text % (perm, perm)) == {"transA": 1, "transB": 1}


def test_a_transposition_that_changes_nothing_is_none():
    text = """g (float[3,3] a, float[3,3] b, float[3] c) => (float[3,3] y) {
        p = Transpose<perm = [0, 1]>(a) q = Transpose(b) t = MatMul(p, q) y = Add(t, c) }"""
    after, _ = check(text, ["Transpose", "Gemm"], NAME)
    assert {item.name: item.i for item in after.graph.node[1].attribute if item.i} == {"transB": 1}


def test_a_sum_of_two_products_keeps_one():
    text = """g (float[2,3] a, float[3,4] b) => (float[2,4] y) {
        s = MatMul(a, b) t = MatMul(a, b) y = Add(s, t) }"""
    check(text, ["MatMul", "Gemm"], NAME)


def test_a_sum_without_summands_is_its_bias():
    text = """g (float[2,0] a, float[0,4] b, float[4] c) => (float[2,4] y) {
        t = MatMul(a, b) y = Add(t, c) }"""
    check(text, ["Gemm"], NAME)


BIASED = "{ t = MatMul(a, b) y = Add(t, c) }"


@pytest.mark.parametrize(
    ("text", "opset", "reason"),
    [
        (f"g (float[M,4] a, float[4,5] b, float[N,5] c) => (float[?,?] y) {BIASED}", 17, "larger"),
        (f"g (float[1,4] a, float[4,5] b, float[3,5] c) => (float[3,5] y) {BIASED}", 17, "larger"),
        (f"g (float[1,4] a, float[4,5] b, float[?,5] c) => (float[?,5] y) {BIASED}", 17, "larger"),
        (
            f"g (float[2,4] a, float[4,5] b, float[1,1,5] c) => (float[1,2,5] y) {BIASED}",
            17,
            "more dimensions",
        ),
        (f"g (float[2,3,4] a, float[4,5] b, float[5] c) => (float[2,3,5] y) {BIASED}", 17, "no op"),
        (f"g (float[4] a, float[4,5] b, float[5] c) => (float[5] y) {BIASED}", 17, "no operand"),
        (f"g (int32[2,4] a, int32[4,5] b, int32[5] c) => (int32[2,5] y) {BIASED}", 17, "dtype"),
        (
            "g (float[2,4] a, float[4,5] b, float[5] c) => (float[2,5] y, float[2,5] t) "
            "{ t = MatMul(a, b) y = Add(t, c) }",
            17,
            "no operand",
        ),
        (
            "g (float[2,4] a, float[4,5] b, float[5] c) => (float[2,5] y) "
            "{ t = MatMul(a, b) s = Add(t, c) y = Mul(s, t) }",
            17,
            "no operand",
        ),
        (
            "g (float[2,4] a, float[4,5] b) => (float[2,5] y) { t = MatMul(a, b) y = Add(t, t) }",
            17,
            "no operand",
        ),
    ],
)
def test_what_a_gemm_does_not_mean_stays(text, opset, reason):
    stays(text, reason, opset=opset)


def test_before_version_7_it_stays():
    """A Gemm broadcasts only where an attribute says so, and Add only its second operand."""
    text = "g (float[2,4] a, float[4,5] b, float[2,5] c) => (float[2,5] y) " + BIASED
    stays(text, "in this version", opset=6)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.tuples(*[st.integers(0, 4)] * 3),
    st.sampled_from(["{n}", "1", "", "{m},{n}", "{m},1", "1,{n}", "1,1"]),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.sampled_from(["float", "double", "float16"]),
    st.integers(0, 2**16),
)
def test_any_matrices_give_the_same(sizes, bias, flags, dtype, seed):
    rows, inner, columns = sizes
    left, right = [rows, inner], [inner, columns]
    turned = [
        shape[::-1] if flag else shape for shape, flag in zip((left, right), flags, strict=False)
    ]
    shapes = [",".join(map(str, shape)) for shape in turned]
    third = bias.format(m=rows, n=columns)
    steps = [
        f"{name}1 = Transpose<perm = [1, 0]>({name})" if flag else f"{name}1 = Identity({name})"
        for name, flag in zip("ab", flags, strict=False)
    ]
    text = f"""g ({dtype}[{shapes[0]}] a, {dtype}[{shapes[1]}] b, {dtype}[{third}] c)
        => ({dtype}[{rows},{columns}] y)
        {{ {" ".join(steps)} t = MatMul(a1, b1) y = Add({"c, t" if flags[2] else "t, c"}) }}"""
    before = model_of(text.replace("[]", ""), opset=13, ir_version=8)
    after, _ = compiled(before, "DropNoOps", NAME)
    assert kinds(after) == ["Gemm"]
    generator = np.random.default_rng(seed)
    feeds = {
        info.name: np.asarray(
            generator.choice([-2.0, -1.0, -0.0, 0.0, 1.0, 3.0, np.inf, np.nan], size=shape)
        ).astype(helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))
        for info in before.graph.input
        for shape in [[dim.dim_value for dim in info.type.tensor_type.shape.dim]]
    }
    assert_agree(before, after, feeds=feeds, tolerance=1e-2 if dtype == "float16" else 1e-5)
