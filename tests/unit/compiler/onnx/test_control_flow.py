"""The graphs that nodes call and the functions of a model are visited; what they read of
the graphs around them stays theirs.
"""

import numpy as np
import onnx
import pytest
from tests.unit.compiler.onnx.support import (
    STAGE,
    assert_same_results,
    feeds_of,
    model_of,
    op_types,
    register,
    register_gemm,
    results_of,
)

from bringup import compiler, ir, passes
from bringup.compiler import onnx as bringup_onnx
from bringup.errors import ModelError

CAPTURING = """g (float[N,4] x, bool c) => (float[N,3] z)
    <float[4,3] w = {1,2,3,4,5,6,7,8,9,10,11,12}, float[3] b = {1,2,3}>
{
    h = Abs(x)
    z = If(c) <
        then_branch = taken () => (float[N,3] r) { q = MatMul(h, w) r = Add(q, b) },
        else_branch = other () => (float[N,3] r2) { m = MatMul(x, w) r2 = Neg(m) }
    >
}"""

LOOP = """g (float[2,2] x, int64 n) => (float[2,2] y, float[S,2,2] all) <bool yes = {1}>
{
    scale = Neg(x)
    y, all = Loop(n, yes, x) <body = step (int64 i, bool go, float[2,2] s)
        => (bool again, float[2,2] next, float[2,2] out) {
        again = Identity(go)
        m = MatMul(s, scale)
        next = Add(m, x)
        out = Relu(next)
    }>
}"""

SCAN = """g (float[2] init, float[5,2] xs) => (float[2] last, float[5,2] sums)
{
    shift = Neg(init)
    last, sums = Scan <num_scan_inputs = 1, body = step (float[2] a, float[2] x)
        => (float[2] b, float[2] s) {
        t = Add(a, x)
        u = Neg(t)
        b = Neg(u)
        s = Add(b, shift)
    }> (init, xs)
}"""

NESTED = """g (float[2,2] x, bool c) => (float[2,2] y) <float[2,2] k = {1,2,3,4}>
{
    outer = Neg(x)
    y = If(c) <
        then_branch = one () => (float[2,2] r) {
            r = If(c) <
                then_branch = two () => (float[2,2] s) { p = MatMul(outer, k) s = Add(p, x) },
                else_branch = three () => (float[2,2] t) { t = Identity(outer) }
            >
        },
        else_branch = four () => (float[2,2] v) { v = Identity(x) }
    >
}"""


def both_results(proto):
    """Feeds for a condition that holds, and one that does not."""
    feeds = feeds_of(proto)
    return [feeds, {**feeds, "c": np.array(False)}]


def rewritten(proto, **options):
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return copy, compiler.apply_passes(copy, options=options)


@pytest.mark.parametrize("text", [CAPTURING, LOOP, SCAN, NESTED])
def test_models_with_control_flow_survive(text):
    proto = model_of(text)
    assert bringup_onnx.from_proto(proto).to_proto() == proto


def test_captured_values_are_read_by_the_node_and_constants_are_known_inside():
    graph = bringup_onnx.from_proto(model_of(CAPTURING)).graph
    (node,) = graph.find("onnx::If")
    assert [value.name for value in node.argument("captures")] == ["h", "x"]
    assert {user.op_type for user in graph.find("onnx::Abs")[0].output.users} == {"onnx::If"}
    taken = graph.get_subgraph("g/z.then_branch")
    assert [value.name for value in taken.inputs] == ["h", "x"]
    outer = {item.name: item.payload for item in graph.find(ir.CONSTANT)}
    inner = {item.name: item.payload for item in taken.find(ir.CONSTANT)}
    assert inner["w"] is outer["w"]
    assert taken.get_parent_node() is node


def test_branches_are_rewritten_and_results_say_where():
    register_gemm()
    proto = model_of(CAPTURING)
    after, report = rewritten(proto, verify=True)
    matches = {result.graph: result.matches for result in report.results}
    assert matches == {"g": 0, "g/z.then_branch": 1, "g/z.else_branch": 0}
    assert "g/z.then_branch: MatMulAddToGemm: changed, 1 matches" in str(report)
    for feeds in both_results(proto):
        assert_same_results(proto, after, feeds)
    (branch,) = [item for item in after.graph.node if item.op_type == "If"]
    graphs = {item.name: item.g for item in branch.attribute}
    assert [node.op_type for node in graphs["then_branch"].node] == ["Gemm"]
    assert not graphs["then_branch"].initializer
    assert not graphs["then_branch"].input


def test_what_a_branch_reads_is_not_taken_away():
    """`h` has a reader that is inside of a graph: a match that would swallow it is refused."""
    register(
        lambda op, inputs: op.Relu(op.Abs(inputs[0])),
        lambda builder, match: builder.onnx.Abs(builder.create_input()),
    )
    text = CAPTURING.replace("=> (float[N,3] z)", "=> (float[N,3] z, float[N,4] k)")
    proto = model_of(text.replace("h = Abs(x)", "h = Abs(x) k = Relu(h)"))
    _, report = rewritten(proto)
    assert report.matches["P"] == 0
    assert "at 'h': its output" in str(report)
    assert "'z'" in str(report)


def test_a_captured_value_that_is_replaced_is_captured_under_its_new_name():
    register(
        lambda op, inputs: op.Abs(inputs[0]),
        lambda builder, match: builder.onnx.Max((x := builder.create_input()), builder.onnx.Neg(x)),
    )
    proto = model_of(CAPTURING)
    after, report = rewritten(proto, verify=True)
    assert report.matches["P"] == 1
    assert op_types(after) == ["Neg", "Max", "If"]
    for feeds in both_results(proto):
        assert_same_results(proto, after, feeds)


def test_a_constant_that_only_a_branch_still_reads_is_written():
    """The outer graph's copy of the weight goes with the match; the branch keeps its own."""

    @passes.register_fusion_pass(name="Drop", stage=STAGE)
    class Drop(passes.FusionBasePass):
        def run(self, graph, context):
            for node in graph.find(ir.CONSTANT):
                if graph.get_parent_graph() is None and not node.users:
                    graph.erase(node)

    proto = model_of(CAPTURING)
    after, _ = rewritten(proto)
    assert not after.graph.initializer
    for feeds in both_results(proto):
        assert_same_results(proto, after, feeds)


def test_the_body_of_a_loop_is_rewritten():
    register_gemm()
    proto = model_of(LOOP)
    after, report = rewritten(proto, verify=True)
    assert report.matches == {"MatMulAddToGemm": 1}
    feeds = {**feeds_of(proto), "n": np.array(3)}
    assert_same_results(proto, after, feeds)


def test_the_body_of_a_scan_is_rewritten():
    register(
        lambda op, inputs: op.Neg(op.Neg(inputs[0])),
        lambda builder, match: builder.onnx.Identity(builder.create_input()),
    )
    proto = model_of(SCAN)
    after, report = rewritten(proto, verify=True)
    assert report.matches == {"P": 1}
    assert_same_results(proto, after)


def test_graphs_in_graphs_are_rewritten():
    register_gemm()
    proto = model_of(NESTED)
    after, report = rewritten(proto, verify=True)
    assert report.matches == {"MatMulAddToGemm": 1}
    assert "g/y.then_branch/r.then_branch: MatMulAddToGemm: changed" in str(report)
    for feeds in both_results(proto):
        assert_same_results(proto, after, feeds)


def test_a_result_of_a_branch_may_be_a_captured_value():
    register(
        lambda op, inputs: op.Identity(inputs[0]),
        lambda builder, match: builder.build_and_reset(builder.create_input()),
    )
    proto = model_of(NESTED)
    after, report = rewritten(proto)
    assert report.matches["P"] == 2
    for feeds in both_results(proto):
        assert_same_results(proto, after, feeds)


def test_shapes_of_captured_values_are_known_inside_after_inference():
    seen = []
    register(
        lambda op, inputs: op.MatMul(inputs[0], inputs[1]),
        lambda builder, match: None,
        meets=lambda match: seen.append(str(match.inputs[0].desc)) or False,
    )
    rewritten(model_of(CAPTURING))
    assert seen == ["float32[N, 4]", "float32[N, 4]"]


def test_new_names_in_a_branch_hide_none_outside():
    """ONNX lets no graph define a name that a graph around it has."""
    register(
        lambda op, inputs: op.Neg(inputs[0]),
        lambda builder, match: builder.onnx.Sub(
            builder.onnx.Sub((x := builder.create_input()), x), x
        ),
    )
    proto = model_of(CAPTURING.replace("h = Abs(x)", "Sub = Neg(x) h = Neg(Sub)"))
    after, report = rewritten(proto, verify=True)
    assert report.matches["P"] == 3
    for feeds in both_results(proto):
        assert_same_results(proto, after, feeds)


def test_a_control_flow_node_that_draws_random_numbers_is_not_replaced():
    text = """g (float[2] x, bool c) => (float[2] y) {
        y = If(c) <
            then_branch = a () => (float[2] r) { r = %s(x) },
            else_branch = b () => (float[2] s) { s = Identity(x) }
        >
    }"""
    register(
        lambda op, inputs: op.If(
            inputs[0],
            then_branch=passes.any_value(),
            else_branch=passes.any_value(),
            captures=passes.variadic("read"),
            outputs=1,
        ),
        lambda builder, match: builder.onnx.Identity(match["read"][0]),
        meets=lambda match: match.outputs[0].node.graph.get_parent_graph() is None,
    )
    assert rewritten(model_of(text % "Relu"))[1].matches["P"] == 1
    assert rewritten(model_of(text % "RandomNormalLike"))[1].matches["P"] == 0


def test_a_branch_of_a_node_that_is_gone_is_neither_visited_nor_written():
    @passes.register_fusion_pass(name="Straight", stage=passes.PassStage.BEFORE_INFER_SHAPE)
    class Straight(passes.FusionBasePass):
        def run(self, graph, context):
            for node in graph.find("onnx::If"):
                op = graph.inserting_before(node).onnx
                graph.replace_all_uses(node.output, op.Neg(node.argument("captures")[0]))
                graph.erase(node)

    proto = model_of(
        """g (float[2] x, bool c) => (float[2] y) {
            y = If(c) <
                then_branch = a () => (float[2] r) { r = Neg(x) },
                else_branch = b () => (float[2] s) { s = Neg(x) }
            >
        }"""
    )
    model = bringup_onnx.from_proto(proto)
    compiler.apply_passes(model)
    report = compiler.apply_passes(model)
    assert [result.graph for result in report.results] == ["g"]
    assert_same_results(proto, model.to_proto())


def test_a_graph_that_reads_what_nothing_defines_is_refused():
    proto = model_of(CAPTURING)
    proto.graph.node[1].attribute[0].g.node[0].input[0] = "lost"
    with pytest.raises(ModelError, match=r"'z' \(If\).*calls a graph that reads 'lost'"):
        bringup_onnx.from_proto(proto)


# Functions

FUNCTION = """
<domain: "local", opset_import: ["" : 17, "local" : 1]>
Linear <scale> (a, w, b) => (r)
{
    m = MatMul(a, w)
    s = Add(m, b)
    k = Constant<value_float: float = @scale>()
    r = Mul(s, k)
}

<domain: "local", opset_import: ["" : 17]>
Noise (a) => (r) { n = RandomNormalLike(a) r = Add(a, n) }
"""

CALLS = """g (float[2,4] x, float[4,3] w, float[3] b) => (float[2,3] y)
{
    t = local.Linear<scale = 2.0>(x, w, b)
    y = Relu(t)
}"""
LOCAL = '"" : 17, "local" : 1'


def function_model(text=CALLS):
    return model_of(text, opset=LOCAL, functions=FUNCTION)


def test_functions_are_graphs_of_their_own():
    model = bringup_onnx.from_proto(function_model())
    assert list(model.functions) == ["local::Linear", "local::Noise"]
    graph = model.functions["local::Linear"]
    assert [value.name for value in graph.inputs] == ["a", "w", "b"]
    assert graph.find("onnx::Constant")[0].argument("value_float") == (
        bringup_onnx.AttributeReference("scale", onnx.AttributeProto.FLOAT)
    )
    assert model.to_proto() == function_model()


def test_functions_are_rewritten():
    register(
        lambda op, inputs: op.Add(op.MatMul(inputs[0], inputs[1]), inputs[2]),
        lambda builder, match: builder.onnx.Gemm(*builder.create_inputs(3)),
        name="Fuse",
    )
    proto = function_model()
    after, report = rewritten(proto)
    assert report.matches == {"Fuse": 1}
    assert "local::Linear: Fuse: changed, 1 matches" in str(report)
    assert [node.op_type for node in after.functions[0].node] == ["Gemm", "Constant", "Mul"]
    np.testing.assert_allclose(
        results_of(after, feeds_of(proto))[0], results_of(proto, feeds_of(proto))[0], rtol=1e-5
    )
    onnx.checker.check_model(after, full_check=True)


def test_constants_that_passes_put_into_functions_are_nodes():
    """A function has no initializers."""
    register(
        lambda op, inputs: op.Add(inputs[0], inputs[1]),
        lambda builder, match: builder.onnx.Sum(
            *builder.create_inputs(2), builder.create_constant([0.0])
        ),
    )
    proto = function_model()
    after, report = rewritten(proto)
    assert report.matches["P"] == 2
    assert [node.op_type for node in after.functions[0].node] == [
        "Constant",
        "MatMul",
        "Sum",
        "Constant",
        "Mul",
    ]
    onnx.checker.check_model(after, full_check=True)


def test_a_call_of_a_function_is_matched_shaped_and_verified():
    register(
        lambda op, inputs: op.Relu(
            inputs[0].builder.op("local::Linear", *inputs[0:3], scale=passes.any_value("scale"))
        ),
        lambda builder, match: builder.onnx.Relu(
            builder.op("local::Linear", *builder.create_inputs(3), scale=match["scale"])
        ),
    )
    proto = function_model()
    after, report = rewritten(proto, verify=True)
    assert report.matches == {"P": 1}
    assert report["P"].verified == 1
    assert_same_results(proto, after)


def test_a_call_of_a_function_that_draws_random_numbers_is_not_replaced():
    register(
        lambda op, inputs: inputs[0].builder.op("local::Noise", inputs[0]),
        lambda builder, match: builder.onnx.Identity(builder.create_input()),
    )
    proto = function_model("g (float[2] x) => (float[2] y) { y = local.Noise(x) }")
    assert rewritten(proto)[1].matches["P"] == 0


def test_a_function_imports_what_its_new_operators_need():
    register(
        lambda op, inputs: op.MatMul(inputs[0], inputs[1]),
        lambda builder, match: builder.operators("com.example").Fast(*builder.create_inputs(2)),
    )
    after, report = rewritten(function_model())
    assert report.matches["P"] == 1
    assert {item.domain: item.version for item in after.functions[0].opset_import} == {
        "": 17,
        "local": 1,
        "com.example": 1,
    }
    onnx.checker.check_model(after)
