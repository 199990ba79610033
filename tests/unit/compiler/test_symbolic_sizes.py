"""Passes over graphs with symbolic sizes: what hooks read of them, compute and put into a graph."""

import pytest
import torch
from tests.oracles.matching import compare_passes_with_oracle
from tests.unit.passes.support import STAGE
from torch.fx.experimental.proxy_tensor import make_fx

from bringup import compiler, ir, passes
from bringup.errors import PassError

SHAPES = ((2, 3, 8), (4, 5, 6), (3, 7, 9), (9, 2, 5))


def model(x):
    return torch.tanh(torch.relu(x)) + 1


def register(replacement, meets=lambda match: True):
    """Register pass "P", which replaces tanh(relu(x)) of a [B, T, C] tensor."""

    @passes.register_fusion_pass(name="P", stage=STAGE)
    class P(passes.PatternFusionPass):
        @passes.pattern
        def chain(self, inputs):
            x = inputs[0].where(shape=("B", "T", "C"))
            return x.builder.op("aten::tanh", x.builder.op("aten::relu", x))

        def meet_requirements(self, match_result):
            return meets(match_result)

        def replacement(self, inputs, match_result):
            return replacement(inputs[0], match_result)


def same(x):
    return x.builder.op("aten::tanh", x.builder.op("aten::relu", x))


def guards_of(function, *shapes):
    """The symbolic guards of a function compiled with dynamic shapes, and what it returned."""
    torch._dynamo.reset()
    found = []

    def backend(module, inputs):
        env = torch._guards.TracingContext.get().fake_mode.shape_env
        compiled = compiler.dynamo_backend(module, inputs)
        found.append(sorted(str(guard.expr) for guard in env.guards))
        return compiled

    compiled = torch.compile(function, backend=backend, dynamic=True)
    for shape in shapes:
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), function(x))
    return found


def matches(function=model, shapes=SHAPES):
    """How often P matched; the results are those of eager and no guard is added."""
    found = guards_of(function, *shapes)
    report = compiler.last_report()
    passes.clear_registered_passes()
    assert found == guards_of(function, *shapes), "a pass added a guard, or a compile"
    return report["P"].matches


def test_sizes_are_compared_where_the_answer_holds_for_every_size():
    register(lambda x, match: same(x), lambda match: match.inputs[0].desc.shape[-1] >= 2)
    assert matches() == 1


def test_match_is_refused_with_a_reason_where_the_answer_depends_on_the_size():
    register(lambda x, match: same(x), lambda match: match.inputs[0].desc.shape[-1] >= 4)
    guards_of(model, *SHAPES)
    (result,) = compiler.last_report().results
    assert (result.matches, result.refused) == (0, 1)
    assert ">= 4 depends on the size" in str(result.near_misses[0])


def test_sizes_of_a_pattern_are_multiplied():
    def flat(x, match):
        op = x.builder.op
        rows = op("aten::view", x, [match["B"] * match["T"], match["C"]])
        shape = [match["B"], match["T"], match["C"]]
        return op("aten::view", same(rows), shape)

    register(flat)
    assert matches() == 1


def test_sizes_stand_beside_numbers():
    def flat(x, match):
        op = x.builder.op
        rows = op("aten::view", x, [-1, match["C"]])
        return op("aten::view", same(rows), match.inputs[0].desc.shape.dims)

    register(flat)
    assert matches() == 1


def test_twice_a_size_is_twice_the_number():
    def second_half(x, match):
        op = x.builder.op
        size = match["B"]
        both = op("aten::cat", [op("aten::neg", x), x])
        return same(op("aten::slice.Tensor", both, 0, size, 2 * size))

    register(second_half)
    assert matches() == 1


def test_quotients_and_remainders_are_computed_in_the_graph():
    def rolled(x, match):
        op = x.builder.op
        size = match["T"]
        half, rest = size // 2, size % 2
        parts = [half, half + rest]
        parts = op("aten::split_with_sizes", same(x), parts, 1, outputs=2)
        return op("aten::cat", list(parts), 1)

    register(rolled)
    assert matches() == 1


def test_symbolic_integers_of_torch_become_values_too():
    register(lambda x, match: x.builder.op("aten::view", same(x), list(match.inputs[0].meta.shape)))
    assert matches() == 1


def test_sizes_are_arguments_of_a_graph_pass():
    @passes.register_fusion_pass(name="P", stage=STAGE)
    class P(passes.FusionBasePass):
        def run(self, graph, context):
            (tanh,) = graph.find("aten::tanh")
            op = graph.inserting_before(tanh.next).op
            batch, *rest = tanh.output.desc.shape
            rows = op("aten::view", tanh.output, [batch * rest[0], rest[1]])
            whole = op("aten::view", op("aten::clone", rows), [batch, *rest])
            graph.replace_all_uses(tanh.output, whole)
            graph.set_argument(rows.value.node, "self", tanh.output)

    assert matches() == 1


def test_size_that_the_graph_computes_is_used_and_not_computed_again():
    def function(x):
        return torch.tanh(torch.relu(x)) + x.new_ones(x.shape[0] * x.shape[1] * x.shape[2]).sum()

    def flat(x, match):
        op = x.builder.op
        rows = op("aten::view", x, [match["B"] * match["T"] * match["C"]])
        return op("aten::view", same(rows), match.inputs[0].desc.shape.dims)

    register(flat)
    assert matches(function) == 1


def test_sizes_that_only_the_data_tell_are_used():
    @passes.register_fusion_pass(name="P", stage=STAGE)
    class P(passes.PatternFusionPass):
        @passes.pattern
        def found(self, inputs):
            x = inputs[0].where(shape=("N", 1))
            return x.builder.op("aten::neg", x)

        def replacement(self, inputs, match_result):
            op = inputs[0].builder.op
            flat = op("aten::neg", op("aten::view", inputs[0], [match_result["N"]]))
            return op("aten::view", flat, [match_result["N"], 1])

    def function(x):
        return torch.neg(torch.nonzero(x))

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="bringup", dynamic=True)
        for count in (3, 5):
            x = torch.tensor([0.0, 1.0] * count)
            assert torch.equal(compiled(x), function(x))
    assert compiler.last_report()["P"].matches == 1


def test_every_rewrite_with_sizes_is_verified():
    def flat(x, match):
        op = x.builder.op
        rows = op("aten::view", x, [match["B"] * match["T"], match["C"]])
        return op("aten::view", same(rows), match.inputs[0].desc.shape.dims)

    register(flat)
    module = make_fx(model, tracing_mode="symbolic")(torch.randn(2, 3, 4))
    result = compiler.apply_passes(module, options={"verify": True})["P"]
    assert (result.matches, result.verified, result.unverified) == (1, 1, [])
    for shape in SHAPES:
        x = torch.randn(shape)
        torch.testing.assert_close(module(x), model(x))


def test_shapes_of_a_replacement_with_sizes_are_inferred_beforehand():
    shapes = []

    def flat(x, match):
        builder = ir.GraphBuilder()
        x = builder.create_input()
        rows = builder.aten.view(x, [match["B"] * match["T"], match["C"]])
        graph = builder.build_and_reset(
            builder.aten.view(same(rows), match.inputs[0].desc.shape.dims)
        )
        passes.infer_shape(graph, match)
        shapes.append(graph.outputs[0].desc.shape.same_as(match.outputs[0].desc.shape))
        return graph

    register(flat)
    assert matches() == 1
    assert shapes == [True]


def test_size_of_another_graph_is_refused_by_name():
    other = ir.SymbolicDim.named("elsewhere")
    register(lambda x, match: x.builder.op("aten::view", same(x), [other, match["T"], match["C"]]))
    with pytest.raises(Exception, match=r"pass 'P' failed.*has the size elsewhere"):
        guards_of(model, SHAPES[0])


def test_symbolic_float_is_refused_before_code_is_made():
    @passes.register_custom_pass(name="P", stage=STAGE)
    def scaled(graph, context):
        (tanh,) = graph.find("aten::tanh")
        ratio = torch.sym_float(tanh.output.meta.shape[0])
        made = graph.inserting_before(tanh.next).op("aten::mul.Tensor", tanh.output, ratio)
        graph.replace_all_uses(tanh.output, made)

    module = make_fx(model, tracing_mode="symbolic")(torch.randn(2, 3, 4))
    code = module.code
    with pytest.raises(PassError, match=r"'mul' \(aten::mul.Tensor\) of pass 'P' has the symbolic"):
        compiler.apply_passes(module)
    assert module.code == code


def test_the_engine_and_its_oracle_give_the_same_sizes(monkeypatch):
    compare_passes_with_oracle(monkeypatch)
    seen = []
    register(lambda x, match: same(x), lambda match: seen.append(match["B"] * 2) or True)
    compiler.apply_passes(make_fx(model, tracing_mode="symbolic")(torch.randn(2, 3, 4)))
    (size,) = seen
    assert isinstance(size, ir.SymbolicDim)


def test_value_that_is_a_size_says_so():
    module = make_fx(lambda x: x.new_ones(x.shape[0] * 2), tracing_mode="symbolic")(torch.randn(3))
    sizes = []

    @passes.register_custom_pass(name="P", stage=STAGE)
    def look(graph, context):
        sizes.extend(value.size for node in graph.nodes for value in node.outputs)

    compiler.apply_passes(module)
    assert any(isinstance(size, ir.SymbolicDim) and str(size).startswith("2*") for size in sizes)
