"""Patterns that cannot be meant: each is refused with what is wrong and what to write instead."""

import pytest
import torch
from tests.unit.passes.support import STAGE

from bringup import compiler, ir, passes
from bringup.errors import PassError


def relu_graph(name="p"):
    builder = ir.GraphBuilder(name)
    return builder.build_and_reset(builder.op("aten::relu", *builder.create_inputs(1)))


def run(traced, cls):
    """The pass over one relu."""
    passes.register_fusion_pass(name="P", stage=STAGE)(cls)
    return compiler.apply_passes(traced(torch.relu, torch.ones(2)))


@pytest.mark.parametrize("stop", [slice(None), slice(0, None), slice(-2, 1), slice(2, 1)])
def test_open_or_backward_slice_of_inputs_is_refused(stop):
    inputs = passes.PatternInputs(ir.GraphBuilder())
    with pytest.raises(ValueError, match=r"takes a closed slice such as inputs\[0:3\], got slice"):
        inputs[stop]
    assert inputs.made() == ()


def test_closed_slice_makes_the_inputs_up_to_its_end():
    inputs = passes.PatternInputs(ir.GraphBuilder())
    assert len(inputs[1:3]) == 2
    assert len(inputs.made()) == 3


@pytest.mark.parametrize("index", ["x", 1.0, True, None])
def test_inputs_are_indexed_by_number(index):
    with pytest.raises(TypeError, match=r"inputs\[\.\.\.\] takes a number or a slice, got"):
        passes.PatternInputs(ir.GraphBuilder())[index]


def test_negative_input_is_refused():
    with pytest.raises(ValueError, match=r"inputs\[\.\.\.\] counts from 0, got -1"):
        passes.PatternInputs(ir.GraphBuilder())[-1]


def test_unpacking_the_inputs_says_to_slice_them(traced):
    class Unpacks(passes.PatternFusionPass):
        @passes.pattern
        def both(self, inputs):
            x, y = inputs
            return x + y

    with pytest.raises(PassError, match=r"TypeError: how many inputs .* take inputs\[0:<number>\]"):
        run(traced, Unpacks)


def test_pattern_is_made_from_a_graph():
    with pytest.raises(TypeError, match=r"a pattern is made from an ir\.Graph, got str"):
        passes.Pattern("aten::relu")


def test_pattern_captures_only_its_own_values():
    other = relu_graph("other").outputs[0]
    for tensor in (other, "x", None):
        with pytest.raises(ValueError, match="pattern 'p' can capture only its own values, got"):
            passes.Pattern(relu_graph()).capture_tensor(tensor)


def test_pattern_without_an_output_is_refused():
    with pytest.raises(PassError, match="pattern 'empty' has no output"):
        passes.Pattern(ir.Graph("empty"))


def test_node_that_contributes_to_no_output_is_refused_by_name():
    builder = ir.GraphBuilder("p")
    (x,) = builder.create_inputs(1)
    builder.op("aten::exp", x)
    graph = builder.build_and_reset(builder.op("aten::relu", x))
    with pytest.raises(PassError, match="node 'exp' of pattern 'p' contributes to no output"):
        passes.Pattern(graph)


def test_pass_without_a_pattern_fails(traced):
    class Nothing(passes.PatternFusionPass):
        def patterns(self):
            return []

    with pytest.raises(PassError, match=r"Nothing\.patterns\(\) returned no pattern"):
        run(traced, Nothing)


def test_pattern_method_that_returns_a_graph_is_told_of_patterns(traced):
    class Builds(passes.PatternFusionPass):
        @passes.pattern
        def graph(self, inputs):
            return relu_graph()

    with pytest.raises(
        PassError,
        match=r"TypeError: @pattern .*Builds\.graph must return the holder\(s\) of its outputs, "
        r"got a Graph; use patterns\(\)",
    ):
        run(traced, Builds)


def test_pattern_method_that_returns_nothing_is_told_what_to_return(traced):
    class Forgets(passes.PatternFusionPass):
        @passes.pattern
        def relu(self, inputs):
            inputs[0] + 1

    with pytest.raises(PassError, match=r"Forgets\.relu must return .*TensorHolder.*got None"):
        run(traced, Forgets)
