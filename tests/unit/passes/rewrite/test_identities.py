"""Replacements that return an input of theirs: the result keeps memory and contents of its own."""

import re

import pytest
import torch
from tests.unit.passes.plain import graph_of
from tests.unit.passes.support import STAGE
from torch.fx.experimental.proxy_tensor import make_fx

from bringup import compiler, ir, passes
from bringup.errors import PassError

X = torch.arange(6.0).view(2, 3)


@pytest.fixture(autouse=True)
def add_zero():
    @passes.register_fusion_pass(name="AddZero", stage=STAGE)
    class AddZero(passes.PatternFusionPass):
        @passes.pattern
        def sum(self, inputs):
            return inputs[0].builder.op("aten::add.Tensor", inputs[0], 0)

        def replacement(self, inputs):
            return inputs[0]


def twice(x):
    inner = x.relu()
    return inner, inner + 0


def thrice(x):
    inner = x.relu()
    return {"first": inner + 0, "others": [inner + 0, inner]}


def written_input(x):
    result = x + 0
    x.add_(1)
    return result


def written_input_read_later(x):
    result = x + 0
    x.add_(1)
    return result * 2


def written_value(x):
    inner = x.relu()
    result = inner + 0
    inner.add_(1)
    return result.view(-1) * 2, inner


def written_through_a_view(x):
    result = x.view(-1) + 0
    x.add_(1)
    return result


def written_before(x):
    inner = x.relu()
    inner.add_(1)
    return inner, inner + 0


def filled_before(x):
    memory = torch.empty_like(x)
    memory.copy_(x)
    return memory + 0, memory.view(-1) + 0, memory


FUNCTIONS = [
    pytest.param(lambda x: x + 0, id="result"),
    pytest.param(lambda x: (x + 0).view(-1), id="view of it"),
    pytest.param(lambda x: x.t() + 0, id="of a view"),
    pytest.param(lambda x: x.expand(4, 2, 3) + 0, id="of an expansion"),
    pytest.param(lambda x: (x + 0, x + 0), id="two of one"),
    pytest.param(lambda x: ((x + 0) + 0) + 0, id="chain"),
    twice,
    thrice,
    written_input,
    written_input_read_later,
    written_value,
    written_through_a_view,
    written_before,
    filled_before,
]


def flat(result):
    return torch.utils._pytree.tree_leaves(result)


def check(rewritten, function):
    """Equal to eager: values, strides, what is written, and memory that is shared by nobody."""
    given, expected_given = X.clone(), X.clone()
    results, expected = flat(rewritten(given)), flat(function(expected_given))
    assert torch.equal(given, expected_given)
    for one, other in zip(results, expected, strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()
    memory = [one.untyped_storage().data_ptr() for one in (*results, given)]
    assert len(set(memory)) == len(memory)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_identity_pass_keeps_every_result_apart_in_a_traced_graph(function):
    module = make_fx(function)(X.clone())
    assert compiler.apply_passes(module)["AddZero"].matches >= 1
    check(module, function)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_identity_pass_keeps_every_result_apart_in_a_compiled_function(function, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="bringup", dynamic=dynamic)
    check(compiled, function)


def test_identity_pass_keeps_every_result_apart_in_an_exported_program():
    class Model(torch.nn.Module):
        def forward(self, x):
            inner = x.relu()
            return x + 0, inner, inner + 0

    program = torch.export.export(Model(), (X,))
    assert compiler.apply_passes(program)["AddZero"].matches == 2
    check(program.module(), Model())


def drop_relu(pattern=lambda x: x.builder.op("t::relu", x)):
    """A pass `t::relu(x) -> x`, for graphs whose dialect makes no copies."""

    @passes.register_fusion_pass(name="DropRelu", stage=STAGE)
    class DropRelu(passes.PatternFusionPass):
        @passes.pattern
        def found(self, inputs):
            return pattern(inputs[0])

        def replacement(self, inputs):
            return inputs[0]

    return lambda graph: compiler.apply_passes(graph, ["DropRelu"])["DropRelu"]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda b, x: (b.relu(x), b.neg(b.relu(b.exp(x)))), "result 0 .*memory with 'input_0'"),
        (lambda b, x: (b.neg(b.relu(b.exp(x))), *two_of(b, b.exp(x))), "results 1 and 2 .*memory"),
    ],
    ids=["an input", "another result"],
)
def test_match_is_left_alone_where_nobody_can_copy_and_the_pass_goes_on(function, words):
    graph = graph_of(function)
    result = drop_relu()(graph)
    assert (result.status, result.matches, result.refused) == (passes.PassStatus.CHANGED, 1, 1)
    (miss,) = result.near_misses
    assert re.search(f"{words}, which .* did not before: copy", str(miss))
    assert len(graph.find("t::relu")) == 1


def two_of(b, x):
    return x, b.relu(x)


def test_node_is_left_alone_where_nobody_can_copy_its_input():
    @passes.register_decompose_pass(op_types=["t::relu"], name="D", stage=STAGE)
    class Decompose(passes.DecomposePass):
        def replacement(self, node):
            return ir.GraphBuilder().create_input()

    graph = graph_of(lambda b, x: (b.relu(x), b.neg(b.relu(b.exp(x)))))
    result = compiler.apply_passes(graph, ["D"])["D"]
    assert (result.matches, result.refused) == (1, 1)
    assert "would share memory with 'input_0'" in str(result.near_misses[0])


def test_pass_whose_pattern_returns_its_input_changes_nothing_and_says_why():
    graph = graph_of(lambda b, x: b.relu(x))
    result = drop_relu(pattern=lambda x: x)(graph)
    assert result.status is passes.PassStatus.UNCHANGED
    assert "the pattern returns its own input" in str(result.near_misses[0])


def test_results_that_an_operator_makes_are_not_copied():
    """Two outputs of one operator have memory of their own."""

    @passes.register_fusion_pass(name="Both", stage=STAGE)
    class Both(passes.PatternFusionPass):
        @passes.pattern
        def apart(self, inputs):
            op = inputs[0].builder.op
            return op("aten::amax", inputs[0], [-1]), op("aten::argmax", inputs[0], -1)

        def replacement(self, inputs):
            return inputs[0].builder.op("aten::max.dim", inputs[0], -1)

    module = make_fx(lambda x: (x.amax(-1), x.argmax(-1)))(X)
    assert compiler.apply_passes(module, ["Both"])["Both"].matches == 1
    assert "clone" not in module.code


def test_only_the_result_that_shares_is_copied():
    module = make_fx(twice)(X)
    compiler.apply_passes(module)
    assert "return (relu, clone)" in module.code
    assert module.code.count("aten.clone") == 1


def shared(*tensors):
    """Which of these lie in one storage."""
    return [tensor.untyped_storage().data_ptr() == tensors[0].untyped_storage().data_ptr()
            for tensor in tensors]  # fmt: skip


def viewed(x):
    result = x + 0
    return result, result.view(-1), result.t(), result[0]


@pytest.mark.parametrize("compiled", [False, True])
def test_results_that_share_memory_go_on_sharing_it_with_each_other_alone(compiled):
    x = X.clone()
    function = make_fx(viewed, tracing_mode="fake")(x)
    compiler.apply_passes(function)
    if compiled:
        function = torch.compile(viewed, backend="bringup")
    with torch.no_grad():
        results = function(x)
    assert shared(*results, x) == [True, True, True, True, False]
    results[0].fill_(7)
    assert all((result == 7).all() for result in results)
    assert torch.equal(x, X)


def test_result_that_is_the_input_stays_what_it_is_beside_a_copy_laid_out_anew():
    """The one returns a view of the input, the other what was dense."""

    def function(x):
        wide = x.expand(2, 3)
        return wide, wide + 0

    x = torch.arange(3.0)
    module = make_fx(function, tracing_mode="fake")(x)
    compiler.apply_passes(module)
    view, dense = module(x)
    assert shared(x, view, dense) == [True, True, False]
    assert (view.stride(), dense.stride()) == ((0, 1), (3, 1))


def test_inner_identity_is_not_copied():
    module = make_fx(lambda x: (x + 0) * 2)(X)
    compiler.apply_passes(module)
    assert "aten.clone" not in module.code


def test_value_whose_memory_is_written_behind_it_is_not_put_there_by_hand():
    @passes.register_custom_pass(name="ByHand", stage=STAGE)
    def by_hand(graph, context):
        (add,) = graph.find("aten::add.Tensor")
        graph.replace_all_uses(add.output, add.inputs[0])

    module = make_fx(written_input_read_later)(X.clone())
    with pytest.raises(PassError, match=r"whose memory 'add_' .* writes behind it: copy it"):
        compiler.apply_passes(module, ["ByHand"])


def test_own_memory_that_a_pass_fills_may_take_the_place_of_a_value():
    @passes.register_custom_pass(name="Filled", stage=STAGE)
    def filled(graph, context):
        (add,) = graph.find("aten::add.Tensor")
        op = graph.inserting_before(add).op
        memory = op("aten::zeros", [2, 3])
        graph.replace_all_uses(add.output, op("aten::copy_", memory, add.inputs[0]))

    def function(x):
        y = x.relu()
        y.mul_(2)
        return (y + 0) * 3

    module = make_fx(function)(X)
    compiler.apply_passes(module, ["Filled"])
    assert torch.equal(module(X), function(X))
