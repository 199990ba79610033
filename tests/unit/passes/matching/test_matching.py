"""What a pattern matches, what it refuses, and that each refusal says why."""

import pytest
import torch
from tests.unit.passes.support import STAGE

from bringup import compiler, ir, passes
from bringup.errors import ExpiredHandleError, PassError

X, Y = torch.randn(4, 8), torch.randn(4, 8)


def register(patterns, replacement, name="P", meet=None):
    """A pattern pass from plain functions."""

    @passes.register_fusion_pass(name=name, stage=STAGE)
    class Fusion(passes.PatternFusionPass):
        def patterns(self):
            return patterns()

        def meet_requirements(self, match_result):
            return True if meet is None else meet(match_result)

        def replacement(self, match_result):
            return replacement(match_result)


def pattern(build, inputs):
    """A pattern graph: `build(builder, *inputs)` returns its outputs."""

    def make():
        builder = ir.GraphBuilder("pattern")
        return builder.build_and_reset(build(builder, *builder.create_inputs(inputs)))

    return make


def one_op(op_type, inputs):
    """A replacement of one operator over the first `inputs` inputs."""

    def make(match_result):
        builder = ir.GraphBuilder()
        return builder.op(op_type, *builder.create_inputs(inputs))

    return make


def exp_relu(b, x):
    return b.op("aten::exp", b.op("aten::relu", x))


def run(module):
    return compiler.apply_passes(module)["P"]


def types(module):
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


def test_chain_is_replaced_and_the_module_computes_the_replacement(traced):
    module = traced(lambda x: torch.exp(torch.relu(x)) + 1, X)
    register(pattern(exp_relu, 1), one_op("aten::tanh", 1))
    result = run(module)
    assert (result.matches, result.status) == (1, passes.PassStatus.CHANGED)
    assert types(module) == [torch.ops.aten.tanh.default, torch.ops.aten.add.Tensor]
    assert torch.equal(module(X), torch.tanh(X) + 1)


def test_commutative_operands_match_in_both_orders(traced):
    module = traced(lambda x, y: (torch.relu(x) * y, y * torch.relu(x)), X, Y)
    register(pattern(lambda b, x, y: y * b.op("aten::relu", x), 2), one_op("aten::maximum", 2))
    assert run(module).matches == 2


def test_scaled_addition_is_not_taken_as_commutative(traced):
    module = traced(lambda x, y: torch.add(torch.relu(x), y, alpha=2), X, Y)

    def scaled(b, x, y):
        return b.op("aten::add", y, b.op("aten::relu", x), alpha=2)

    register(pattern(scaled, 2), one_op("aten::maximum", 2))
    assert run(module).matches == 0


def test_inner_value_with_another_reader_is_refused_and_named(traced):
    def function(x):
        inner = torch.relu(x)
        return torch.exp(inner), torch.neg(inner)

    module = traced(function, X)
    register(pattern(exp_relu, 1), one_op("aten::tanh", 1))
    result = run(module)
    assert result.matches == 0
    assert "its output 0 is used outside by 'neg'" in str(result.near_misses[0])
    assert result.near_misses[0].matched == 2


def test_several_outputs_are_replaced_together(traced):
    def function(x):
        inner = torch.relu(x)
        return torch.exp(inner), torch.abs(inner)

    def both(b, x):
        inner = b.op("aten::relu", x)
        return b.op("aten::exp", inner), b.op("aten::abs", inner)

    def replacement(match_result):
        builder = ir.GraphBuilder()
        (x,) = builder.create_inputs(1)
        return builder.op("aten::tanh", x), builder.op("aten::neg", x)

    module = traced(function, X)
    register(pattern(both, 1), replacement)
    assert run(module).matches == 1
    for got, expected in zip(module(X), (X.tanh(), -X), strict=True):
        assert torch.equal(got, expected)


def test_output_read_before_another_output_exists_moves_the_late_inputs(traced):
    def function(x, w1, w2):
        first = x @ w1
        early = torch.exp(first)
        second = x @ torch.relu(w2)
        return early, second

    def two(b, x, u, v):
        return b.op("aten::mm", x, u), b.op("aten::mm", x, v)

    def replacement(match_result):
        builder = ir.GraphBuilder()
        x, u, v = builder.create_inputs(3)
        joined = builder.op("aten::mm", x, builder.op("aten::cat", [u, v], 1))
        return builder.op("aten::split_with_sizes", joined, [8, 8], 1, outputs=2)

    w1, w2 = torch.randn(8, 8), torch.randn(8, 8)
    module = traced(function, X, w1, w2)
    expected = module(X, w1, w2)
    register(pattern(two, 3), replacement)
    assert run(module).matches == 1
    module.graph.lint()
    for got, wanted in zip(module(X, w1, w2), expected, strict=True):
        assert torch.allclose(got, wanted, atol=1e-6)


def refusal_of_two_products(module):
    """Why two products with one right side are not found in the module."""

    def two(b, x, y, w):
        return b.op("aten::mm", x, w), b.op("aten::mm", y, w)

    register(pattern(two, 3), lambda match_result: pytest.fail("must not be asked"))
    result = run(module)
    assert result.matches == 0
    return str(result.near_misses[0])


def test_match_that_would_make_a_cycle_is_refused(traced):
    def function(x, w):
        first = x @ w
        return first @ w, torch.exp(first)

    module = traced(function, torch.randn(4, 4), torch.randn(4, 4))
    assert "computed inside of what is replaced" in refusal_of_two_products(module)


def test_cycle_through_a_node_outside_of_the_match_is_refused(traced):
    def function(x, w):
        first = x @ w
        return torch.exp(first) @ w

    module = traced(function, torch.randn(4, 4), torch.randn(4, 4))
    words = "it would make a cycle: what it needs depends on 'exp'"
    assert words in refusal_of_two_products(module)


def test_one_input_used_twice_needs_the_same_value_not_only_the_same_node(traced):
    def function(x):
        left, right = torch.split(x, 4, 1)
        return left * right

    module = traced(function, X)
    register(pattern(lambda b, x: x * x, 1), one_op("aten::neg", 1))
    result = run(module)
    assert result.matches == 0
    assert "another value" in result.near_misses[0].reason
    assert (result.near_misses[0].expected, result.near_misses[0].got) == ("%split:0", "%split:1")


def test_output_index_of_an_inner_node_is_compared(traced):
    module = traced(lambda x: torch.neg(torch.max(x, 1)[0]), X)

    def indices(b, x):
        return b.op("aten::neg", b.op("aten::max.dim", x, 1)[1])

    register(pattern(indices, 1), one_op("aten::neg", 1))
    assert "another output of the node is read (expected 1, got 0)" in str(
        run(module).near_misses[0]
    )


def test_two_pattern_nodes_never_stand_for_one_node(traced):
    def function(x):
        inner = torch.relu(x)
        return inner + inner

    def two(b, x, y):
        return b.op("aten::relu", x) + b.op("aten::relu", y)

    module = traced(function, X)
    register(pattern(two, 2), one_op("aten::add", 2))
    result = run(module)
    assert result.matches == 0
    assert "one node would stand for two of the pattern" in result.near_misses[0].reason


def test_host_arguments_are_compared_after_defaults_are_filled_in(traced):
    module = traced(lambda x: torch.ops.aten.sum.dim_IntList(x, [-1], True), X)

    def keyword(b, x):
        return b.op("aten::sum.dim_IntList", x, [-1], keepdim=True, dtype=None)

    register(pattern(keyword, 1), lambda match_result: keyword_mean(match_result))
    assert run(module).matches == 1
    assert torch.allclose(module(X), X.mean(-1, keepdim=True))


def keyword_mean(match_result):
    builder = ir.GraphBuilder()
    return builder.op("aten::mean", *builder.create_inputs(1), [-1], True)


def test_replacement_of_another_shape_fails_naming_both_and_changes_nothing(traced):
    module = traced(lambda x: torch.exp(torch.relu(x)), X)
    code = module.code
    register(pattern(exp_relu, 1), keyword_mean)
    with pytest.raises(PassError) as failure:
        run(module)
    text = str(failure.value)
    assert (
        "replace 'exp' (aten::exp) by 'mean' (aten::mean.dim): expected shape [4, 8], got" in text
    )
    assert "expected shape [4, 8], got [4, 1]" in text
    assert module.code == code
    assert torch.equal(module(X), torch.exp(torch.relu(X)))


def test_replacement_of_another_dtype_fails_naming_both(traced):
    def to_double(match_result):
        builder = ir.GraphBuilder()
        return builder.op("aten::_to_copy", *builder.create_inputs(1), dtype="float64")

    register(pattern(exp_relu, 1), to_double)
    with pytest.raises(PassError, match="expected dtype float32, got float64"):
        run(traced(lambda x: torch.exp(torch.relu(x)), X))


def test_replacement_with_a_wrong_number_of_outputs_fails(traced):
    def two(match_result):
        builder = ir.GraphBuilder()
        (x,) = builder.create_inputs(1)
        return builder.op("aten::exp", x), builder.op("aten::neg", x)

    register(pattern(exp_relu, 1), two)
    with pytest.raises(PassError, match="has 2 outputs, what it replaces has 1"):
        run(traced(lambda x: torch.exp(torch.relu(x)), X))


def test_new_nodes_carry_rule_origin_and_shape(traced):
    module = traced(lambda x: torch.exp(torch.relu(x)), X)
    for node in module.graph.nodes:
        node.meta["stack_trace"] = f"line of {node.name}"
    register(pattern(exp_relu, 1), one_op("aten::tanh", 1))
    run(module)
    (new,) = (node for node in module.graph.nodes if node.op == "call_function")
    assert new.meta["bringup"] == {"rule": "P", "replaces": ("relu", "exp")}
    assert new.meta["stack_trace"] == "line of relu\nline of exp"
    assert tuple(new.meta["val"].shape) == (4, 8)


@pytest.mark.parametrize(("wanted", "matches"), [(2.0, 1), (3.0, 0), (2, 0)])
def test_literals_are_compared_with_their_type(traced, wanted, matches):
    module = traced(lambda x: x * 2.0, X)
    register(pattern(lambda b, x: x * wanted, 1), one_op("aten::neg", 1))
    result = run(module)
    assert result.matches == matches
    if not matches:
        miss = result.near_misses[0]
        assert (miss.reason, miss.expected, miss.got) == (
            "an argument differs",
            repr(wanted),
            "2.0",
        )


def test_any_value_captures_an_argument_and_the_same_name_must_agree(traced):
    seen = []

    def clamps(b, x):
        low = passes.any_value("low")
        return b.op("aten::clamp_min", b.op("aten::clamp_min", x, low), low)

    def replacement(match_result):
        seen.append(match_result["low"])
        builder = ir.GraphBuilder()
        return builder.op("aten::clamp_min", *builder.create_inputs(1), match_result["low"])

    def function(x):
        same = torch.clamp_min(torch.clamp_min(x, 0.5), 0.5)
        return torch.clamp_min(torch.clamp_min(same, 1.0), 2.0)

    module = traced(function, X)
    register(pattern(clamps, 1), replacement)
    assert run(module).matches == 1
    assert seen == [0.5]


def test_any_value_matches_a_list_that_holds_values():
    def function(x):
        return torch.relu(x.view(x.shape[0] * 2, -1))

    from torch.fx.experimental.proxy_tensor import make_fx

    module = make_fx(function, tracing_mode="symbolic")(X)

    def view(b, x):
        return b.op("aten::relu", b.op("aten::view", x, passes.any_value("size")))

    def replacement(match_result):
        builder = ir.GraphBuilder()
        (x,) = builder.create_inputs(1)
        return builder.op("aten::view", builder.op("aten::relu", x), match_result["size"])

    register(pattern(view, 1), replacement)
    assert run(module).matches == 1
    assert torch.equal(module(X), torch.relu(X).view(8, -1))


def test_unrelated_write_in_between_does_not_hinder(traced):
    def function(x, y):
        inner = torch.relu(x)
        y.add_(1)
        return torch.exp(inner), y

    module = traced(function, X, Y.clone())
    register(pattern(exp_relu, 1), one_op("aten::tanh", 1))
    assert run(module).matches == 1


def test_input_written_between_its_two_reads_is_refused(traced):
    def function(x):
        inner = torch.relu(x)
        x.add_(1)
        return inner + x

    module = traced(function, X.clone())
    register(pattern(lambda b, x: b.op("aten::relu", x) + x, 1), one_op("aten::tanh", 1))
    expected = module(X.clone())
    result = run(module)
    assert result.matches == 0
    assert torch.equal(module(X.clone()), expected)


def test_write_through_a_view_of_what_a_match_reads_is_refused_and_named(traced):
    def function(x):
        inner = torch.relu(x)
        x.view(-1).add_(1)
        return torch.exp(inner) + x

    module = traced(function, X.clone())
    # the match reads x before the write and would read it after
    register(pattern(exp_relu, 1), one_op("aten::tanh", 1))
    result = run(module)
    assert result.matches == 0
    assert "'add_' writes what it reads" in result.near_misses[0].reason


def test_operator_that_writes_is_never_replaced(traced):
    module = traced(lambda x: torch.exp(x.relu_()), X.clone())
    register(
        pattern(lambda b, x: b.op("aten::exp", b.op("aten::relu_", x)), 1), one_op("aten::tanh", 1)
    )
    assert "writes memory or is random" in run(module).near_misses[0].reason


def test_random_operator_is_replaced_only_when_it_draws_nothing(traced):
    def dropout(b, x):
        return b.op("aten::native_dropout", x, passes.any_value(), passes.any_value())[0]

    register(pattern(dropout, 1), one_op("aten::neg", 1))
    drawing = traced(lambda x: torch.native_dropout(x, 0.5, True)[0], X)
    assert "random" in run(drawing).near_misses[0].reason
    idle = traced(lambda x: torch.native_dropout(x, 0.5, False)[0], X)
    assert run(idle).matches == 1


def test_disconnected_pattern_is_refused_with_a_reason(traced):
    module = traced(lambda x, y: (torch.exp(x), torch.neg(y)), X, Y)

    def apart(b, x, y):
        return b.op("aten::exp", x), b.op("aten::neg", y)

    register(pattern(apart, 2), one_op("aten::neg", 1))
    assert "parts that share no value" in run(module).near_misses[0].reason


def test_absent_operator_is_the_near_miss_of_a_graph_without_candidates(traced):
    register(pattern(exp_relu, 1), one_op("aten::neg", 1))
    result = run(traced(torch.neg, X))
    assert str(result.near_misses[0]) == "pattern: 0 of 2 nodes matched, the graph has no aten::exp"


def test_refusal_of_meet_requirements_is_reported(traced):
    register(pattern(exp_relu, 1), one_op("aten::tanh", 1), meet=lambda match_result: False)
    result = run(traced(lambda x: torch.exp(torch.relu(x)), X))
    assert (result.matches, result.refused) == (0, 1)
    assert result.near_misses[0].reason == "meet_requirements returned False"


def test_match_expires_after_its_hook(traced):
    kept = []
    register(
        pattern(exp_relu, 1),
        one_op("aten::tanh", 1),
        meet=lambda match_result: kept.append((match_result, match_result.inputs[0])) or True,
    )
    run(traced(lambda x: torch.exp(torch.relu(x)), X))
    with pytest.raises(ExpiredHandleError, match="graph handle has expired: a match lives only"):
        kept[0][0].get_matched_nodes()
    with pytest.raises(ExpiredHandleError, match="graph handle has expired: node 'x_1' belongs"):
        _ = kept[0][1].users


def test_match_result_hands_out_inputs_outputs_captures_and_nodes(traced):
    seen = {}

    def patterns():
        builder = ir.GraphBuilder("p")
        (x,) = builder.create_inputs(1)
        inner = builder.op("aten::relu", x)
        graph = builder.build_and_reset(builder.op("aten::exp", inner))
        return [passes.Pattern(graph).capture_tensor(inner, name="inner")]

    def meet(match_result):
        seen["nodes"] = [node.name for node in match_result.get_matched_nodes()]
        seen["captured"] = match_result.get_captured_tensor(0).name
        seen["named"] = match_result["inner"].name
        seen["desc"] = match_result.inputs[0].desc
        with pytest.raises(IndexError, match="captures 1 tensors; there is no number 1"):
            match_result.get_captured_tensor(1)
        with pytest.raises(KeyError, match=r"captures nothing named 'outer'; it has \['inner'\]"):
            match_result["outer"]
        return True

    register(patterns, one_op("aten::tanh", 1), meet=meet)
    assert run(traced(lambda x: torch.exp(torch.relu(x)), X)).matches == 1
    assert (seen["nodes"], seen["captured"], seen["named"]) == (["relu", "exp"], "relu", "relu")
    assert seen["desc"] == ir.TensorDesc(ir.Shape((4, 8)), "float32", (8, 1), "cpu")


def test_replacement_that_holds_its_own_pattern_ends(traced):
    register(pattern(lambda b, x: b.op("aten::relu", x), 1), one_op("aten::relu", 1))
    assert run(traced(lambda x: torch.relu(torch.relu(x)), X)).matches == 2


def test_overlapping_matches_are_rewritten_one_after_the_other(traced):
    def chain(x):
        for _ in range(5):
            x = torch.relu(x)
        return x

    def twice(b, x):
        return b.op("aten::relu", b.op("aten::relu", x))

    module = traced(chain, X)
    register(pattern(twice, 1), one_op("aten::relu", 1))
    assert run(module).matches >= 2
    assert torch.equal(module(X), torch.relu(X))


def test_stacked_diamonds_and_sums_of_sums_end(traced):
    """Walking every path of these would take hours."""

    def diamonds(x):
        for _ in range(20):
            x = torch.relu(x) * torch.neg(x)
        return x

    def diamonds_pattern(b, x):
        for _ in range(20):
            x = b.op("aten::relu", x) * b.op("aten::neg", x)
        return x

    module = traced(diamonds, X)
    register(pattern(diamonds_pattern, 1), one_op("aten::neg", 1))
    assert run(module).matches == 1

    def sums(x):
        for _ in range(16):
            x = x + x.neg()
        return x.exp()

    def other_sums(b, x):
        inner = b.op("aten::abs", x)
        for _ in range(16):
            inner = inner + b.op("aten::neg", inner)
        return b.op("aten::exp", inner)

    passes.clear_registered_passes()
    register(pattern(other_sums, 1), one_op("aten::neg", 1))
    assert run(traced(sums, X)).matches == 0
