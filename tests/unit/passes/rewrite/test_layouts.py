"""Replacements with other strides, and results that would come to share memory."""

import pytest
import torch
from tests.unit.passes.support import STAGE
from torch.fx.experimental.proxy_tensor import make_fx

from bringup import compiler, ir, passes
from bringup.errors import PassError

X = torch.randn(2, 3, 4)


def turned(builder, x):
    """relu(x) laid out with the first two dimensions exchanged in memory."""
    swapped = builder.op("aten::transpose.int", builder.op("aten::relu", x), 0, 1)
    dense = builder.op("aten::clone", swapped, memory_format=torch.contiguous_format)
    return builder.op("aten::transpose.int", dense, 0, 1)


def register(replacement=turned, found="aten::relu", **settings):
    """Register pass "P", which puts `replacement` in the place of one unary operator."""

    @passes.register_fusion_pass(name="P", stage=STAGE, **settings)
    class Relaying(passes.PatternFusionPass):
        @passes.pattern
        def one(self, inputs):
            return inputs[0].builder.op(found, inputs[0])

        def replacement(self, match_result):
            builder = ir.GraphBuilder()
            return replacement(builder, builder.create_input())


def rewritten(function, *examples, matches=1):
    """The function traced and rewritten, checked against itself: values and strides."""
    module = make_fx(function, tracing_mode="fake")(*examples)
    assert compiler.apply_passes(module)["P"].matches == matches
    module.graph.lint()
    got, expected = module(*examples), function(*examples)
    pairs = list(zip(got, expected, strict=True)) if isinstance(got, tuple) else [(got, expected)]
    for one, other in pairs:
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride()
    return module


def test_result_keeps_its_strides():
    """The caller may view it."""
    register()
    rewritten(torch.relu, X)


def test_result_behind_what_hands_the_strides_on_keeps_its_strides():
    register()
    module = rewritten(lambda x: (torch.exp(torch.relu(x)), torch.relu(x).sum()), X, matches=2)
    assert module.code.count("aten.clone") == 3


def test_view_that_cannot_take_the_new_strides_reads_a_copy():
    register()
    rewritten(lambda x: torch.exp(torch.relu(x).view(24)), X)


def test_view_of_a_layout_with_gaps_that_no_copy_has_is_an_error():
    register(found="aten::alias")
    with pytest.raises(PassError, match=r"after P, .*view.* cannot take its inputs: "):
        rewritten(lambda x: torch.ops.aten.alias(x[..., :4]).view(6, 4), torch.randn(2, 3, 8))


def test_reader_that_can_take_the_new_strides_reads_no_copy():
    register()
    module = rewritten(lambda x: torch.relu(x).sum(0), X)
    assert module.code.count("aten.clone") == 1


def test_operator_that_addresses_memory_reads_a_copy():
    """`as_strided` takes any strides, and would give other elements."""
    register()
    rewritten(lambda x: torch.as_strided(torch.relu(x), (3, 5), (1, 2)) + 1, X)


def test_two_views_of_one_result_still_share_memory():
    register()

    def function(x):
        y = torch.relu(x)
        return y[0], y

    first, whole = rewritten(function, X)(X)
    whole.zero_()
    assert not first.any()


def test_channels_last_is_a_layout_like_any_other():
    register(lambda builder, x: builder.op("aten::mul", builder.op("aten::relu", x), 1.0))
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    rewritten(torch.relu, x)
    passes.clear_registered_passes()
    register(
        lambda builder, x: builder.op(
            "aten::clone", builder.op("aten::relu", x), memory_format=torch.contiguous_format
        )
    )
    rewritten(torch.relu, x)


def test_symbolic_sizes_get_copies_and_no_guard():
    register()
    compiled = torch.compile(
        lambda x: torch.exp(torch.relu(x).view(-1)), backend="bringup", dynamic=True
    )
    for size in (5, 7):
        x = torch.randn(size, 3, 4)
        assert torch.equal(compiled(x), torch.exp(torch.relu(x).view(-1)))
    assert compiler.last_report()["P"].matches == 1


def test_rewrite_that_is_undone_leaves_no_copy():
    """A later match of the pass is refused by its hook; what it expected is forgotten."""

    @passes.register_fusion_pass(name="P", stage=STAGE, on_error="skip")
    class Half(passes.PatternFusionPass):
        @passes.pattern
        def one(self, inputs):
            return inputs[0].builder.op("aten::relu", inputs[0])

        def replacement(self, match_result):
            builder = ir.GraphBuilder()
            out = turned(builder, builder.create_input())
            return (out, out)

    module = make_fx(torch.relu, tracing_mode="fake")(X)
    result = compiler.apply_passes(module)["P"]
    assert (result.matches, result.failures) == (0, 1)
    assert "clone" not in module.code


@pytest.mark.parametrize("view", [False, True], ids=["value", "view of it"])
def test_results_that_would_share_memory_become_two(view):
    """Whoever writes one result would find the other changed."""

    @passes.register_fusion_pass(name="P", stage=STAGE)
    class Merge(passes.FusionBasePass):
        def run(self, graph, context):
            first, second = graph.find("aten::relu")
            graph.replace_all_uses(second.output, first.output)
            graph.erase(second)

    def function(x):
        second = torch.relu(x)
        return torch.relu(x), second.view(24) if view else second

    module = rewritten(function, X)
    assert (module.code.count("aten.relu"), module.code.count("aten.clone")) == (1, 1)
    one, other = module(X)
    assert one.data_ptr() != other.data_ptr()


def test_results_may_become_parts_of_one_value_that_do_not_overlap():
    """Query, key and value from one product."""

    @passes.register_fusion_pass(name="P", stage=STAGE)
    class Join(passes.FusionBasePass):
        def run(self, graph, context):
            first, second = graph.find("aten::relu")
            op = graph.inserting_before(second).op
            both = op("aten::relu", op("aten::cat", [*first.inputs, *second.inputs]))
            parts = op("aten::split.Tensor", both, 2, outputs=2)
            for node, part in zip((first, second), parts, strict=True):
                graph.replace_all_uses(node.output, part)
                graph.erase(node)

    rewritten(lambda x, y: (torch.relu(x), torch.relu(y)), X, X + 1)


def test_what_addresses_memory_reads_a_copy_where_memory_begins_elsewhere(traced):
    """The strides are the same; the identity's result began at 0, its input does not."""

    @passes.register_fusion_pass(name="Twice", stage=STAGE)
    class Twice(passes.PatternFusionPass):
        @passes.pattern
        def twice(self, inputs):
            op = inputs[0].builder.op
            return op("aten::neg", op("aten::neg", inputs[0]))

        def replacement(self, inputs):
            return inputs[0]

    def function(x):
        return torch.neg(torch.neg(x)).as_strided((2,), (1,), 0) * 2

    x = torch.arange(20.0)[3:9].view(2, 3)
    module = traced(function, x)
    assert compiler.apply_passes(module).matches["Twice"] == 1
    assert torch.equal(module(x), function(x))
