"""Patterns traced from torch functions match what the backend makes of models."""

import pytest
import torch
from torch.nn import functional

from bringup import compiler, ir, passes
from bringup.errors import PassError


@pytest.fixture(autouse=True)
def forgotten_compiles():
    """What was compiled of `Sequential` with another size makes sizes symbolic."""
    torch._dynamo.reset()


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


def test_unused_input_is_refused():
    with pytest.raises(PassError, match=r"input 1 of pattern '<lambda>' is used nowhere in it"):
        compiler.trace_pattern(lambda x, y: x.relu(), torch.ones(2), torch.ones(2))


def test_constant_tensor_in_a_pattern_is_refused():
    constant = torch.ones(2)
    with pytest.raises(PassError, match=r"traced as the constant .*; make it an input"):
        compiler.trace_pattern(lambda x: x + constant, torch.ones(2))


def test_pattern_without_examples_matches_any_sizes_and_dtype():
    """`compiler.trace_pattern(lambda a, b: torch.relu(a @ b))`"""

    @passes.register_fusion_pass(name="P", stage=passes.PassStage.AFTER_INFER_SHAPE)
    class Fusion(passes.PatternFusionPass):
        def patterns(self):
            return compiler.trace_pattern(lambda a, b: torch.relu(a @ b))

        def replacement(self, match_result):
            builder = ir.GraphBuilder()
            a, b = builder.create_inputs(2)
            return builder.op("aten::clamp_min", builder.op("aten::mm", a, b), 0)

    for dtype in (torch.float32, torch.bfloat16):
        compiled = torch.compile(lambda a, b: torch.relu(a @ b).sum(), backend="bringup")
        a, b = torch.randn(3, 5).to(dtype), torch.randn(5, 2).to(dtype)
        with torch.no_grad():
            assert torch.allclose(compiled(a, b), torch.relu(a @ b).sum())
        assert compiler.last_report()["P"].matches == 1


def test_without_examples_only_parameters_that_need_a_value_are_inputs():
    def scaled(a, b, factor=2.0, **others):
        return torch.add(a, b, alpha=factor)

    traced = compiler.trace_pattern(scaled)
    (add,) = traced.graph.find("aten::add.Tensor")
    assert (len(traced.graph.inputs), add.argument("alpha")) == (2, 2.0)


def test_numbers_that_the_function_names_itself_stay_in_a_pattern_without_examples():
    traced = compiler.trace_pattern(lambda x: torch.softmax(x, -1).clamp(0.25, 0.5))
    (clamp,) = traced.graph.find("aten::clamp")
    assert (clamp.argument("min"), clamp.argument("max")) == (0.25, 0.5)


def test_sizes_of_missing_examples_never_get_into_a_pattern():
    def flat(x):
        return x.reshape(x.shape[0] * x.shape[1]).relu()

    with pytest.raises(
        PassError,
        match=r"argument 'size' of aten::view \('view'\) in flat is made from the sizes or the "
        r"dtype of the inputs: leave it open with open_arguments={'size'}, or give an example",
    ):
        compiler.trace_pattern(flat)
    opened = compiler.trace_pattern(flat, open_arguments={"size"})
    (view,) = opened.graph.find("aten::view")
    assert view.argument("size") == passes.any_value("view.size")


@pytest.mark.parametrize(
    "function", [lambda x: x.float().relu(), lambda x: x.relu() if len(x) < 90000 else x.tanh()]
)
def test_operators_that_depend_on_missing_examples_are_refused(function):
    with pytest.raises(
        PassError,
        match=r"which operators <lambda> calls depends on the sizes or the dtype of its inputs: "
        r"give an example of each",
    ):
        compiler.trace_pattern(function)


def test_function_that_refuses_matrices_asks_for_examples():
    with pytest.raises(
        PassError,
        match=r"(?s)convolved cannot be traced on 2 floating-point matrices.*RuntimeError.*"
        r"Give an example of each input: trace_pattern\(function, torch\.empty\(2, 3, 4\)",
    ):
        compiler.trace_pattern(lambda x, w: functional.conv2d(x, w), name="convolved")


@pytest.mark.parametrize("count", [1, 3])
def test_wrong_number_of_examples_is_refused_and_shows_the_parameters(count):
    with pytest.raises(
        TypeError,
        match=rf"trace_pattern: {count} examples do not fit <lambda>\(a, b\): .*; "
        r"give one tensor for each parameter, or none at all",
    ):
        compiler.trace_pattern(lambda a, b: a + b, *[torch.ones(2)] * count)


def test_function_that_does_not_tell_its_parameters_needs_examples():
    text = "does not tell how many tensors it takes: give an example of each"
    for function in (torch.relu, lambda *tensors: tensors[0] + tensors[1]):
        with pytest.raises(TypeError, match=text):
            compiler.trace_pattern(function)
    assert compiler.trace_pattern(torch.relu, torch.ones(2)).graph.find("aten::relu")


def test_keyword_that_is_needed_cannot_be_an_input():
    def scaled(x, *, factor):
        return x * factor

    with pytest.raises(
        TypeError,
        match=r"scaled\(x, \*, factor\) needs the keyword 'factor', and only positional parameters "
        r"become inputs of a pattern: wrap it in a lambda",
    ):
        compiler.trace_pattern(scaled)
