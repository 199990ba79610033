"""Passes where opsets and domains differ: what matches, what is imported, what is a conflict."""

import onnx
import pytest
from tests.unit.compiler.onnx.support import (
    assert_same_results,
    matches_of,
    model_of,
    register,
    rewritten,
    swap,
)

from bringup import passes
from bringup.compiler import onnx as bringup_onnx
from bringup.errors import ModelError, PassError


def test_a_pattern_of_another_opset_matches_nothing_and_says_so():
    swap(lambda op, x: op.Gelu(x), lambda op, x: op.Relu(x))
    text = "g (float[2] x) => (float[2] y) { y = %s(x) }"
    assert matches_of(model_of(text % "Gelu", opset=20)) == 1
    _, report = rewritten(model_of(text % "Relu", opset=17))
    assert "the graph has no onnx::Gelu of opset 20" in str(report)


def test_one_pass_takes_the_forms_of_two_opsets():
    """Squeeze has its axes as an attribute up to opset 12, as an input since 13."""
    register(
        lambda op, inputs: op.Squeeze(inputs[0], axes=passes.any_value("axes")),
        lambda builder, match: builder.onnx.Flatten(builder.create_input(), axis=1),
        name="Old",
    )
    register(
        lambda op, inputs: op.Squeeze(inputs[0], passes.constant([2])),
        lambda builder, match: builder.onnx.Flatten(builder.create_input(), axis=1),
        name="New",
    )
    old = model_of("g (float[2,3,1] x) => (float[2,3] y) { y = Squeeze<axes = [2]>(x) }", opset=12)
    new = model_of(
        "g (float[2,3,1] x) => (float[2,3] y) <int64[1] a = {2}> { y = Squeeze(x, a) }", opset=13
    )
    for proto, expected in ((old, {"Old": 1, "New": 0}), (new, {"Old": 0, "New": 1})):
        after, report = rewritten(proto)
        assert report.matches == expected
        assert_same_results(proto, after)


def test_the_old_one_sided_broadcast_of_add_does_not_commute():
    register(
        lambda op, inputs: op.Add(op.Relu(inputs[0]), inputs[1], broadcast=passes.any_value()),
        lambda builder, match: builder.onnx.Relu(builder.create_inputs(2)[0]),
        meets=lambda match: False,
    )
    text = "g (float[2] x, float[2] z) => (float[2] y) { t = Relu(x) y = Add(%s) }"
    reports = [rewritten(model_of(text % order, opset=6))[1]["P"] for order in ("t, z", "z, t")]
    assert [report.refused for report in reports] == [1, 0]


def test_an_operator_of_another_domain_is_imported():
    register(
        lambda op, inputs: op.Relu(inputs[0]),
        lambda builder, match: builder.operators("com.example").Relu6(
            builder.create_input(), cap=6.0
        ),
    )
    proto = model_of("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    after, _ = rewritten(proto)
    onnx.checker.check_model(after)
    (node,) = after.graph.node
    assert (node.domain, node.op_type, node.attribute[0].f) == ("com.example", "Relu6", 6.0)
    assert {item.domain: item.version for item in after.opset_import} == {"": 17, "com.example": 1}
    assert after.graph.output == proto.graph.output


def test_a_domain_that_the_model_imports_keeps_its_version_and_another_is_a_conflict():
    def in_version(version):
        def make(builder, match):
            graph = match.get_matched_nodes()[0].graph
            bringup_onnx.require_opset(graph, "com.example", version)
            return builder.operators("com.example").Other(builder.create_input())

        return make

    register(lambda op, inputs: op.Relu(inputs[0]), in_version(3), name="Three")
    register(lambda op, inputs: op.Relu(inputs[0]), in_version(2), name="Two")
    text = "g (float[2] x) => (float[2] y) { y = Relu(x) }"
    proto = model_of(text, opset='"" : 17, "com.example" : 3')
    after, _ = rewritten(proto, ["Three"])
    assert after.opset_import == proto.opset_import
    with pytest.raises(
        PassError, match=r"imports version 3 of the domain 'com.example'.*version 2"
    ):
        rewritten(proto, ["Two"])
    fresh, _ = rewritten(model_of(text), ["Two"])
    assert {item.domain: item.version for item in fresh.opset_import}["com.example"] == 2


def test_require_opset_is_undone_with_its_pass():
    def make(builder, match):
        bringup_onnx.require_opset(match.get_matched_nodes()[0].graph, "com.example", 2)
        raise ValueError("no")

    register(lambda op, inputs: op.Relu(inputs[0]), make, on_error="skip")
    proto = model_of("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    after, _ = rewritten(proto)
    assert after == proto


def test_operators_without_a_schema_match_by_inputs_and_attributes():
    register(
        lambda op, inputs: inputs[0].builder.op("com.example::Scale", inputs[0], factor=0.1),
        lambda builder, match: builder.onnx.Relu(builder.create_input()),
    )
    text = "g (float[2] x) => (float[2] y) { y = com.example.Scale<factor = %s>(x) }"
    opset = '"" : 17, "com.example" : 1'
    assert matches_of(model_of(text % "0.1", opset=opset)) == 1
    assert matches_of(model_of(text % "0.2", opset=opset)) == 0


def test_an_operator_that_the_model_lacks_cannot_be_written():
    """Where no shape is known, inference cannot refuse it: writing does."""
    model = bringup_onnx.from_proto(
        model_of("g (float[2] x) => (float[2] y) { y = Relu(x) }", opset=17)
    )
    graph = model.graph
    graph.set_meta(graph.inputs[0], None)
    op = graph.inserting_before(graph.output_node).onnx
    graph.set_outputs(op.Gelu(graph.inputs[0]))
    with pytest.raises(ModelError, match=r"'Gelu.*' cannot be written: there is no onnx::Gelu of"):
        model.to_proto()
