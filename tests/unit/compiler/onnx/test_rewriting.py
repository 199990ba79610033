"""Patterns on ONNX models, what replaces them, and what is refused."""

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, parser
from tests.unit.compiler.onnx.support import (
    LINEAR,
    STAGE,
    assert_same_results,
    matches_of,
    model_of,
    op_types,
    register,
    register_gemm,
    rewritten,
    swap,
)

from bringup import compiler, ir, passes
from bringup.compiler import onnx as bringup_onnx
from bringup.compiler.onnx import register_library
from bringup.errors import ModelError, PassError, WrongRewriteError
from bringup.ir.node import plain

# Running passes


def test_a_proto_is_rewritten_in_place_and_computes_the_same():
    register_gemm()
    proto = model_of(LINEAR)
    after, report = rewritten(proto, verify=True)
    assert op_types(after) == ["Gemm"]
    assert report.matches == {"MatMulAddToGemm": 1}
    assert report["MatMulAddToGemm"].verified == 1
    assert_same_results(proto, after)


def test_a_model_is_rewritten_in_place_and_saved(tmp_path):
    register_gemm()
    proto = model_of(LINEAR)
    onnx.save(proto, tmp_path / "before.onnx")
    model = bringup_onnx.load(tmp_path / "before.onnx")
    compiler.apply_passes(model)
    after = onnx.load(model.save(tmp_path / "after.onnx"))
    assert op_types(after) == ["Gemm"]
    assert onnx.load(tmp_path / "before.onnx") == proto
    assert_same_results(proto, after)


def test_the_path_of_a_file_is_refused_with_the_way_to_load_it(tmp_path):
    with pytest.raises(TypeError, match=r"got PosixPath: load the file with compiler\.onnx\.load"):
        compiler.apply_passes(tmp_path / "model.onnx")


def test_passes_that_do_not_match_leave_the_proto_as_it_is():
    register_gemm()
    proto = model_of("g (float[2] x) => (float[2] y) { t = Relu(x) y = Neg(t) }")
    after, report = rewritten(proto)
    assert after == proto
    assert report.matches == {"MatMulAddToGemm": 0}
    assert "the graph has no onnx::Add" in str(report)


def test_passes_of_aten_match_nothing():
    """Passes for PyTorch may be registered when a model of ONNX comes."""

    @passes.register_fusion_pass(name="Aten", stage=STAGE)
    class Aten(passes.PatternFusionPass):
        @passes.pattern
        def the_pattern(self, inputs):
            op = inputs[0].builder.aten
            return op.addmm(
                inputs[0], op.relu(inputs[1]), inputs[2], beta=1, alpha=passes.any_value()
            )

        def replacement(self, match_result):
            raise AssertionError("nothing matches")

    @passes.register_fusion_pass(name="Traced", stage=STAGE)
    class Traced(passes.PatternFusionPass):
        def patterns(self):
            return compiler.trace_pattern(lambda a, b: (a + b).relu())

        def replacement(self, match_result):
            raise AssertionError("nothing matches")

    after, report = rewritten(model_of(LINEAR))
    assert report.matches == {"Aten": 0, "Traced": 0}
    assert after == model_of(LINEAR)


def test_passes_of_onnx_match_nothing_in_torch(traced):
    """The same for passes for ONNX models when a model of PyTorch comes."""
    register_gemm()
    module = traced(lambda x, y: x @ y + 1, torch.ones(2, 2), torch.ones(2, 2))
    assert compiler.apply_passes(module).matches == {"MatMulAddToGemm": 0}


def test_a_failed_pass_leaves_its_edits_out_and_those_of_others_in():
    register_gemm("First")

    def fails(builder, match):
        raise ValueError("no")

    register(lambda op, inputs: op.Relu(inputs[0]), fails, name="Second")
    proto = model_of(LINEAR.replace("y = Add(b, t)", "s = Add(b, t) y = Relu(s)"))
    with pytest.raises(PassError, match=r"pass 'Second' failed.*no"):
        compiler.apply_passes(proto)
    assert op_types(proto) == ["Gemm", "Relu"]


# What new nodes are


def test_results_keep_their_names_and_new_values_get_free_ones():
    swap(lambda op, x: op.Relu(x), lambda op, x: op.Max(op.Neg(op.Neg(x)), x))
    proto = model_of("g (float[2] x) => (float[2] y) { Neg = Relu(x) t = Neg(Neg) y = Relu(t) }")
    after, _ = rewritten(proto)
    onnx.checker.check_model(after, full_check=True)
    names = [name for node in after.graph.node for name in node.output]
    assert len(set(names)) == len(names)
    assert after.graph.output == proto.graph.output
    assert names[-1] == "y"


def test_a_value_that_was_a_result_gives_its_name_to_what_replaces_it():
    """y = Relu(x) becomes y = Neg(Neg(Relu(x))): the old Relu needs another name."""

    @passes.register_fusion_pass(name="Wrap", stage=STAGE)
    class Wrap(passes.FusionBasePass):
        def run(self, graph, context):
            (node,) = graph.find("onnx::Relu")
            op = graph.inserting_before(graph.output_node).onnx
            graph.set_outputs(op.Neg(op.Neg(node.output)))

    proto = model_of("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    after, _ = rewritten(proto)
    assert op_types(after) == ["Relu", "Neg", "Neg"]
    assert after.graph.node[0].output[0] != "y"
    assert_same_results(proto, after)


def test_a_result_that_becomes_an_input_is_copied_by_an_identity():
    @passes.register_fusion_pass(name="P", stage=STAGE)
    class Drop(passes.PatternFusionPass):
        @passes.pattern
        def the_pattern(self, inputs):
            op = inputs[0].builder.onnx
            return op.Neg(op.Neg(inputs[0]))

        def replacement(self, match_result):
            builder = ir.GraphBuilder()
            return builder.build_and_reset(builder.create_input())

    proto = model_of(
        "g (float[2] x) => (float[2] y, float[2] z) { t = Neg(x) y = Neg(t) z = Abs(y) }"
    )
    after, report = rewritten(proto)
    assert report.matches == {"P": 1}
    assert op_types(after) == ["Abs", "Identity"]
    assert_same_results(proto, after)


def test_new_nodes_carry_rule_name_replaced_names_and_stack_trace():
    register_gemm()
    proto = model_of(LINEAR)
    for node, name in zip(proto.graph.node, ("mm", "plus"), strict=True):
        node.name = name
        node.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=f"line of {name}")
    (node,) = rewritten(proto)[0].graph.node
    found = {item.key: item.value for item in node.metadata_props}
    assert found["bringup.rule"] == "MatMulAddToGemm"
    assert found["bringup.replaces"] == "mm, plus"
    assert found["pkg.torch.onnx.stack_trace"] == "line of mm\nline of plus"


def test_a_model_whose_nodes_have_no_metadata_yet_gets_none():
    register_gemm()
    (node,) = rewritten(model_of(LINEAR, ir_version=8))[0].graph.node
    assert not node.metadata_props


def test_value_info_of_what_still_exists_stays_and_new_values_get_theirs():
    swap(lambda op, x: op.Relu(x), lambda op, x: op.Neg(op.Neg(x)))
    proto = model_of(
        "g (float[N,2] x) => (float[N,2] y) <float[N,2] a, float[N,2] b> "
        "{ a = Relu(x) b = Abs(a) y = Relu(b) }"
    )
    after, _ = rewritten(proto)
    infos = {info.name: info for info in after.graph.value_info}
    assert set(infos) == {name for node in after.graph.node[:-1] for name in node.output}
    assert infos["b"] == next(info for info in proto.graph.value_info if info.name == "b")
    assert [dim.dim_param or dim.dim_value for dim in infos["Neg"].type.tensor_type.shape.dim] == [
        "N",
        2,
    ]


def test_an_attribute_that_a_pass_sets_is_the_only_thing_that_changes():
    @passes.register_fusion_pass(name="Beta", stage=STAGE)
    class Beta(passes.FusionBasePass):
        def run(self, graph, context):
            for node in graph.find("onnx::Gemm"):
                node.set_attr("beta", 0.5)
                node.set_attr("alpha", 1.0)

    text = "g (float[2,2] x) => (float[2,2] y) { y = Gemm<alpha = 2.0, transA = 0>(x, x, x) }"
    proto = model_of(text)
    proto.graph.node[0].attribute[0].doc_string = "why"
    after, _ = rewritten(proto)
    (node,) = after.graph.node
    found = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    assert found == {"alpha": 1.0, "beta": 0.5, "transA": 0}
    assert node.attribute[0].doc_string == "why"


# Attributes, constants, inputs in patterns


def test_attributes_that_differ_are_reported_as_the_near_miss():
    swap(lambda op, x: op.Gemm(x, x, transB=1), lambda op, x: op.Relu(x))
    proto = model_of("g (float[2,2] x) => (float[2,2] y) { y = Gemm(x, x) }")
    _, report = rewritten(proto)
    (miss,) = report["P"].near_misses
    assert (miss.reason, miss.expected, miss.got) == ("an argument differs", "1", "0")


@pytest.mark.parametrize("alpha", [0.1, passes.constant(0.1), passes.any_value(among=[0.1, 0.2])])
def test_floats_are_compared_as_attributes_keep_them(alpha):
    """A float attribute is single precision: 0.1 in the pattern is the 0.1 of the file."""
    swap(lambda op, x: op.LeakyRelu(x, alpha=alpha), lambda op, x: op.Relu(x))
    proto = model_of("g (float[2] x) => (float[2] y) { y = LeakyRelu<alpha = 0.1>(x) }")
    assert matches_of(proto) == 1
    assert matches_of(model_of("g (float[2] x) => (float[2] y) { y = LeakyRelu(x) }")) == 0


def test_an_attribute_is_captured_and_copied():
    @passes.register_fusion_pass(name="P", stage=STAGE)
    class Merge(passes.PatternFusionPass):
        @passes.pattern
        def two_transposes(self, inputs):
            op = inputs[0].builder.onnx
            first = op.Transpose(inputs[0], perm=passes.any_value("first"))
            return op.Transpose(first, perm=passes.any_value("second"))

        def replacement(self, match_result):
            first, second = match_result["first"], match_result["second"]
            builder = ir.GraphBuilder()
            perm = [first[index] for index in second]
            return builder.onnx.Transpose(builder.create_input(), perm=perm)

    proto = model_of(
        "g (float[2,3,4] x) => (float[4,2,3] y) "
        "{ t = Transpose<perm = [1, 2, 0]>(x) y = Transpose<perm = [1, 2, 0]>(t) }"
    )
    after, _ = rewritten(proto, verify=True)
    assert list(after.graph.node[0].attribute[0].ints) == [2, 0, 1]
    assert_same_results(proto, after)


def test_scalar_initializers_match_with_a_tolerance_and_in_either_order():
    swap(
        lambda op, x: op.Mul(x, passes.constant(0.7978845608, rtol=1e-4)),
        lambda op, x: op.Identity(x),
    )
    text = "g (float[2] x) => (float[2] y) <float k = {%s}> { y = Mul(%s) }"
    assert matches_of(model_of(text % ("0.79788", "k, x"))) == 1
    assert matches_of(model_of(text % ("0.79788", "x, k"))) == 1
    assert matches_of(model_of(text % ("0.79", "x, k"))) == 0


def test_constants_of_a_pattern_match_by_value():
    swap(lambda op, x: x * 2.0, lambda op, x: op.Add(x, x))
    text = "g (float[2] x) => (float[2] y) <%s k = {2}> { y = Mul(x, k) }"
    assert matches_of(model_of(text % "float")) == 1
    assert matches_of(model_of(text % "float[1]")) == 0


def test_optional_inputs_may_be_absent():
    register(
        lambda op, inputs: op.Conv(
            inputs[0], inputs[1], passes.optional(inputs[2]), kernel_shape=passes.any_value()
        ),
        lambda builder, match: builder.onnx.Identity(match.outputs[0].node.inputs[0]),
        meets=lambda match: seen.append(match.inputs[2] is None) or False,
    )
    seen = []
    text = (
        "g (float[1,1,4,4] x, float[1,1,1,1] w, float[1] b) => (float[1,1,4,4] y) { y = Conv(%s) }"
    )
    matches_of(model_of(text % "x, w"))
    matches_of(model_of(text % "x, w, b"))
    assert seen == [True, False]


def test_relu_before_concat_is_any_number_of_inputs():
    """The variadic Concat, as the sample of GE has it."""
    register(
        lambda op, inputs: op.Relu(
            op.Concat(inputs[0], passes.variadic("rest"), axis=passes.any_value("axis"))
        ),
        lambda builder, match: builder.onnx.Concat(
            *(builder.onnx.Relu(value) for value in (match.inputs[0], *match["rest"])),
            axis=match["axis"],
        ),
    )
    proto = model_of(
        "g (float[2] a, float[3] b, float[4] c) => (float[9] y) "
        "{ t = Concat<axis = 0>(a, b, c) y = Relu(t) }"
    )
    after, _ = rewritten(proto, verify=True)
    assert op_types(after) == ["Relu", "Relu", "Relu", "Concat"]
    assert_same_results(proto, after)


def test_several_outputs_are_asked_for_by_number():
    register(
        lambda op, inputs: op.TopK(inputs[0], inputs[1], axis=passes.any_value()),
        lambda builder, match: builder.onnx.TopK(*builder.create_inputs(2), sorted=0),
    )
    proto = model_of("g (float[4] x, int64[1] k) => (float[M] y, int64[M] i) { y, i = TopK(x, k) }")
    copy = bringup_onnx.from_proto(proto)
    builder = copy.graph.inserting_before(copy.graph.output_node)
    x, k = copy.graph.inputs
    _, indices = builder.onnx.TopK(x, k)
    assert str(indices.value.desc).startswith("int64[")
    assert not isinstance(builder.onnx.MaxPool, tuple)
    halves = builder.op("onnx::Split", x, outputs=2, axis=0)
    assert [str(item.value.desc) for item in halves] == ["float32[2]", "float32[2]"]
    with pytest.raises(ValueError, match=r"how many outputs onnx::Split has depends on the call"):
        builder.op("onnx::Split", x)
    with pytest.raises(ValueError, match=r"onnx::Dropout has 1 to 2 outputs, got outputs=3"):
        builder.op("onnx::Dropout", x, outputs=3)
    dropped, mask = builder.op("onnx::Dropout", x, outputs=2)
    assert str(mask.value.desc) == "bool[4]"
    assert str(dropped.value.desc) == "float32[4]"


def test_dtypes_ranks_and_symbolic_sizes_are_asked_of_values():
    swap(
        lambda op, x: op.Softmax(x.where(dtype="float32", shape=("n", "n")), axis=-1),
        lambda op, x: op.Relu(x),
    )
    text = "g (%s x) => (%s y) { y = Softmax(x) }"
    for kind, expected in (("float[S,S]", 1), ("float[S,T]", 0), ("float16[S,S]", 0)):
        assert matches_of(model_of(text % (kind, kind))) == expected


def test_infix_operators_are_those_of_onnx():
    swap(
        lambda op, x: -((1.0 - x) / x + 2.0 / x) @ x**x * 3.0,
        lambda op, x: op.Relu(x),
    )
    proto = model_of(
        """g (float[2,2] x) => (float[2,2] y)
            <float one = {1}, float two = {2}, float three = {3}> {
            a = Sub(one, x)
            b = Div(a, x)
            c = Div(two, x)
            d = Add(b, c)
            e = Neg(d)
            f = Pow(x, x)
            g1 = MatMul(e, f)
            y = Mul(g1, three)
        }"""
    )
    assert matches_of(proto) == 1


# What is refused


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda op, x: op.Matmul(x, x), "no operator onnx::Matmul; did you mean 'MatMul'"),
        (lambda op, x: op.Relu(x, x), "onnx::Relu takes at most 1 inputs, got 2"),
        (lambda op, x: op.Relu(), "onnx::Relu needs an argument for 'X'"),
        (lambda op, x: op.Gemm(x, x, trans=1), "onnx::Gemm has no parameter 'trans'"),
        (lambda op, x: op.Gemm(x, x, transA="yes"), "'transA' of onnx::Gemm must be of type INT"),
        (lambda op, x: op.Concat(x, x), "onnx::Concat needs the attribute 'axis'"),
        (lambda op, x: op.Mul(x, 2.0), "takes a tensor for 'B', got 2.0: use create_constant"),
    ],
)
def test_a_call_that_does_not_fit_its_schema_is_refused_by_name(build, words):
    swap(build, lambda op, x: op.Relu(x))
    with pytest.raises(PassError, match=words):
        rewritten(model_of(LINEAR))


@pytest.mark.parametrize(
    ("new", "words"),
    [
        (lambda op, x: op.Cast(x, to=11), r"expected dtype float32, got float64"),
        (lambda op, x: op.Transpose(x), r"expected shape \[2, 3\], got \[3, 2\]"),
        (lambda op, x: op.ReduceMax(x), r"expected shape \[2, 3\], got \[1, 1\]"),
        (lambda op, x: op.MatMul(x, x), r"onnx::MatMul cannot take these arguments"),
        (lambda op, x: op.And(x, x), r"onnx::And cannot take these arguments"),
        (lambda op, x: op.Gelu(x), r"there is no onnx::Gelu of opset 20"),
    ],
)
def test_a_replacement_that_does_not_fit_is_refused_and_undone(new, words):
    """Checked against what it replaces, by the inference of onnx."""
    swap(lambda op, x: op.Relu(x), new)
    proto = model_of("g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }")
    before = proto.SerializeToString(deterministic=True)
    with pytest.raises(PassError, match=words):
        compiler.apply_passes(proto)
    assert proto.SerializeToString(deterministic=True) == before


def test_a_replacement_with_another_symbolic_size_is_refused():
    swap(
        lambda op, x: op.Relu(x),
        lambda op, x: op.Expand(x, plain(x).graph.add_constant(np.array([7, 3]))),
    )
    proto = model_of("g (float[1,3] x) => (float[N,3] y) { t = Relu(x) y = Identity(t) }")
    with pytest.raises(PassError, match=r"expected shape \[1, 3\], got \[7, 3\]"):
        compiler.apply_passes(proto)


def test_a_wrong_rewrite_names_itself():
    swap(lambda op, x: op.Relu(x), lambda op, x: op.Abs(x))
    proto = model_of("g (float[2,N] x) => (float[2,N] y) { y = Relu(x) }")
    with pytest.raises(WrongRewriteError, match=r"'P' is wrong at"):
        compiler.apply_passes(proto, options={"verify": True})


def test_operators_that_draw_random_numbers_are_never_replaced():
    """A dropout that does not train draws nothing."""
    swap(lambda op, x: op.RandomNormalLike(x), lambda op, x: op.Relu(x))
    text = "g (float[2] x) => (float[2] y) { y = RandomNormalLike(x) }"
    assert matches_of(model_of(text)) == 0
    swap(lambda op, x: op.Dropout(x), lambda op, x: op.Identity(x), name="Q")
    assert matches_of(model_of("g (float[2] x) => (float[2] y) { y = Dropout(x) }"), "Q") == 1
    swap(
        lambda op, x: op.Dropout(x, None, passes.constant(name="mode")),
        lambda op, x: op.Identity(x),
        name="R",
    )
    text = "g (float[2] x) => (float[2] y) <bool mode = {%d}> { y = Dropout(x, , mode) }"
    assert matches_of(model_of(text % 0), "R") == 1
    assert matches_of(model_of(text % 1), "R") == 0


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [("N", "M"), ("N", "3"), ("3", "N"), ("?", "M")],
)
def test_names_of_sizes_are_hints_to_every_pass(inputs, outputs):
    """Another name, a number for a name: no pass of the library and no pattern is refused."""
    register(
        lambda op, inputs: op.Abs(op.Abs(inputs[0])),
        lambda builder, match: builder.onnx.Abs(builder.create_input()),
    )
    register_library()
    bias = model_of(
        f"g (float[{inputs},2] x) => (float[{outputs},2] y) <float[2,2] w = {{1, 2, 3, 4}}, "
        "float[2] z = {0, 0}> { y = Gemm(x, w, z) }"
    )
    twice = model_of(
        f"g (float[{inputs},2] x) => (float[{outputs},2] y) {{ a = Abs(x) y = Abs(a) }}"
    )
    parts = ", ".join(f"int64[1] i{n} = {{{n}}}" for n in (0, 1, 2, 4))
    slices = model_of(
        f"g (float[{inputs},4] x) => (float[{outputs},2] a, float[K,2] b) <{parts}> "
        "{ a = Slice(x, i0, i2, i1) b = Slice(x, i2, i4, i1) }"
    )
    for proto, expected in ((bias, ["Gemm"]), (twice, ["Abs"]), (slices, ["Split"])):
        after, _ = rewritten(proto)
        assert op_types(after) == expected
        assert after.graph.output == proto.graph.output
        assert_same_results(proto, after)
    assert len(rewritten(bias)[0].graph.node[0].input) == 2


def test_nodes_that_are_not_sorted_are():
    """Also by what branches read; a circle is still an error."""
    text = """g (float[2] x, bool q) => (float[2] y) {
        y = If(q) <then_branch = t () => (float[2] u) { u = Neg(a) },
                   else_branch = e () => (float[2] v) { w = Neg(v1) v = Neg(w) v1 = Abs(b) }>
        b = Relu(a)
        a = Abs(x) }"""
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 17]> {text}')
    graph = bringup_onnx.from_proto(proto).graph
    assert [node.op_type for node in graph.nodes[2:-1]] == ["onnx::Abs", "onnx::Relu", "onnx::If"]
    circle = "g (float[2] x) => (float[2] y) { y = Add(x, z) z = Neg(y) }"
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 17]> {circle}')
    with pytest.raises(ModelError, match="which nothing before it defines"):
        bringup_onnx.from_proto(proto)


def test_convolution_that_is_not_valid_is_left_alone_with_a_reason():
    """SAME padding of a scalar: the shapes contradict the operator."""
    register_library()
    proto = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 17]> g (float x, float[1,1,3] w) => (float[1,1,3] y) '
        '{ y = Conv<auto_pad = "SAME_UPPER">(x, w) }'
    )
    after, report = rewritten(proto)
    assert after == proto
    assert "as many kernel sizes" in report["OnnxLibraryExplicitPads"].near_misses[0].reason
