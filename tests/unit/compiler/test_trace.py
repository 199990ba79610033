"""Patterns traced from torch functions match what the backend makes of models."""

import pytest
import torch
from torch.nn import functional

from bringup import compiler, ir, passes
from bringup.errors import PassError


def test_traced_pattern_of_a_linear_layer_matches_the_compiled_model():
    examples = (torch.randn(2, 3, 4), torch.randn(5, 4), torch.randn(5))

    def linear_gelu(x, weight, bias):
        return functional.gelu(functional.linear(x, weight, bias))

    @passes.register_fusion_pass(name="P", stage=passes.PassStage.AFTER_INFER_SHAPE)
    class Fusion(passes.PatternFusionPass):
        def patterns(self):
            return compiler.trace_pattern(linear_gelu, *examples, open_arguments={"size"})

        def replacement(self, match_result):
            assert match_result.pattern_name == "linear_gelu"
            assert match_result["view.size"] == (63, 8)
            builder = ir.GraphBuilder()
            x, weight, bias = builder.create_inputs(3)
            return builder.op("aten::gelu", builder.op("aten::linear", x, weight, bias))

    model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.GELU()).eval()
    x = torch.randn(7, 9, 8)
    with torch.no_grad():
        compiled = torch.compile(model, backend="bringup")
        assert torch.allclose(compiled(x), model(x), atol=1e-6)
    assert compiler.last_report()["P"].matches == 1


def test_in_place_operators_are_traced_as_the_backend_sees_them():
    def function(a, b):
        total = a + b
        total.relu_()
        return total

    traced = compiler.trace_pattern(function, torch.ones(2), torch.ones(2))
    types = [node.op_type for node in traced.graph.nodes]
    assert types == [ir.INPUT, ir.INPUT, "aten::add.Tensor", "aten::relu", ir.OUTPUT]


def test_sizes_are_compared_unless_left_open():
    closed = compiler.trace_pattern(lambda x: x.view(4).relu(), torch.ones(2, 2))
    (view,) = closed.graph.find("aten::view")
    assert view.argument("size") == (4,)


def test_unused_input_and_returned_input_are_refused():
    with pytest.raises(PassError, match=r"input 1 of pattern '<lambda>' is used nowhere in it"):
        compiler.trace_pattern(lambda x, y: x.relu(), torch.ones(2), torch.ones(2))
    with pytest.raises(PassError, match="pattern 'same' returns its own input"):
        compiler.trace_pattern(lambda x: x, torch.ones(2), name="same")


def test_constant_tensor_in_a_pattern_is_refused():
    constant = torch.ones(2)
    with pytest.raises(PassError, match=r"has a constant .*; make it an input"):
        compiler.trace_pattern(lambda x: x + constant, torch.ones(2))
