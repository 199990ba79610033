"""FX graphs of every kind: mirrored, rewritten in place, and right afterwards."""

import operator

import pytest
import torch
from tests.unit.passes.support import STAGE, register_swap
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from bringup import compiler, passes
from bringup.compiler.mirror import as_traced
from bringup.errors import PassError


def graph_pass(run):
    @passes.register_fusion_pass(name="G", stage=STAGE)
    class GraphPass(passes.FusionBasePass):
        def run(self, graph, context):
            return run(graph, context)


def test_exported_program_is_rewritten_in_place_and_keeps_its_signature():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            self.count.add_(1)
            return torch.relu(self.linear(x))

    model, x = Model(), torch.randn(2, 4)
    program = torch.export.export(model, (x,)).run_decompositions({})
    register_swap("aten::relu", "aten::tanh")
    assert compiler.apply_passes(program)["P"].matches == 1
    program.graph.lint()
    module = program.module()
    assert torch.allclose(module(x), torch.tanh(model.linear(x)))
    assert module.count.item() == 1
    names = [spec.arg.name for spec in program.graph_signature.output_specs]
    assert names == [node.name for node in program.graph.output_node().args[0]]


def test_graph_of_module_calls_and_python_functions_is_left_alone():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(x).sum() + torch.relu(x)[0]

    module = torch.fx.symbolic_trace(Model())
    register_swap("aten::relu", "aten::tanh")
    result = compiler.apply_passes(module)["P"]
    assert str(result.near_misses[0]) == "found: 0 of 1 nodes matched, the graph has no aten::relu"


def test_near_misses_of_branches_are_in_the_report_as_their_matches_are():
    class Model(nn.Module):
        def forward(self, flag, x):
            return torch.relu(torch.cond(flag, lambda x: x.sin(), lambda x: x.relu() + 1, (x,)))

    program = torch.export.export(Model(), (torch.tensor(True), torch.ones(2)))
    register_swap("aten::relu", "aten::tanh")
    result = compiler.apply_passes(program)["P"]
    assert result.matches == 2
    reasons = [str(miss) for miss in result.near_misses]
    assert reasons == ["found: 0 of 1 nodes matched, the graph has no aten::relu"]


def test_new_node_with_several_outputs_gets_the_indexing_that_its_readers_need(traced):
    def run(graph, context):
        (exp,) = graph.find("aten::exp")
        values, _ = graph.inserting_before(exp).op("aten::sort", exp.inputs[0], -1)
        graph.set_argument(exp, "self", values)

    module = traced(torch.exp, torch.randn(3))
    graph_pass(run)
    compiler.apply_passes(module)
    module.graph.lint()
    assert torch.equal(module(torch.tensor([3.0, 1.0])), torch.tensor([1.0, 3.0]).exp())


def test_node_with_several_outputs_moves_and_goes_with_its_indexing(traced):
    def function(x):
        values, indices = torch.sort(x, -1)
        return values.exp(), indices

    def run(graph, context):
        (sort,), (exp,) = graph.find("aten::sort"), graph.find("aten::exp")
        new = graph.inserting_before(sort).op("aten::neg", exp.output)
        graph.replace_all_uses(sort.outputs[0], graph.inputs[0])
        graph.set_outputs([new, sort.outputs[1]])

    module = traced(function, torch.randn(3))
    graph_pass(run)
    compiler.apply_passes(module)
    module.graph.lint()
    x = torch.tensor([3.0, 1.0])
    assert torch.equal(module(x)[0], -x.exp())


def test_tuple_that_is_returned_whole_is_left_alone(traced):
    module = traced(lambda x: torch.relu(x).split(2), torch.randn(4))
    register_swap("aten::relu", "aten::tanh")
    assert compiler.apply_passes(module)["P"].matches == 1
    assert torch.equal(module(torch.ones(4))[1], torch.ones(2).tanh())


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (
            lambda graph, context: graph.add_input("more"),
            "cannot give a compiled graph a new input",
        ),
        (
            lambda graph, context: graph.set_outputs(*graph.outputs, *graph.outputs),
            "a compiled graph has 1 outputs; a pass cannot change that to 2",
        ),
    ],
)
def test_signature_of_a_compiled_graph_cannot_be_changed(traced, run, text):
    module = traced(torch.exp, torch.randn(3))
    code = module.code
    graph_pass(lambda graph, context: run(graph, context) and None)
    with pytest.raises(PassError, match=text):
        compiler.apply_passes(module)
    assert module.code == code


def test_input_of_a_compiled_graph_cannot_be_removed(traced):
    def run(graph, context):
        (exp,) = graph.find("aten::exp")
        graph.replace_all_uses(
            exp.output, graph.inserting_before(exp).op("aten::neg", graph.inputs[1])
        )
        graph.erase(exp)
        graph.erase(graph.inputs[0].node)

    module = traced(lambda x, y: torch.exp(x), torch.randn(3), torch.randn(3))
    graph_pass(run)
    with pytest.raises(PassError, match="cannot remove an input of a compiled graph"):
        compiler.apply_passes(module)


def test_constant_of_a_replacement_becomes_a_buffer(traced):
    def run(graph, context):
        (exp,) = graph.find("aten::exp")
        bias = graph.add_constant(torch.full((3,), 2.0), name="bias")
        new = graph.inserting_before(exp).op("aten::add", exp.inputs[0], bias)
        graph.replace_all_uses(exp.output, new)
        graph.erase(exp)

    module = traced(torch.exp, torch.randn(3))
    graph_pass(run)
    compiler.apply_passes(module)
    assert torch.equal(module(torch.zeros(3)), torch.full((3,), 2.0))


def instead_of_relu(graph, op_type):
    (relu,) = graph.find("aten::relu")
    new = graph.inserting_before(relu).op(op_type, relu.inputs[0])
    graph.replace_all_uses(relu.output, new)
    graph.erase(relu)


def other_operand(graph, value):
    (node,) = graph.find("aten::sub.Tensor")
    graph.set_argument(node, "other", value)


def swap_operands(graph):
    (node,) = graph.find("aten::sub.Tensor")
    left, right = node.inputs
    graph.set_argument(node, "self", right)
    graph.set_argument(node, "other", left)


@pytest.mark.parametrize(
    ("function", "edit", "expected"),
    [
        (
            lambda x: torch.cat([(r := x.relu()), x, r]),
            lambda graph: instead_of_relu(graph, "aten::tanh"),
            lambda x: torch.cat([x.tanh(), x, x.tanh()]),
        ),
        (
            lambda x: (e := x.exp()) - e,
            lambda graph: other_operand(graph, graph.inputs[0]),
            lambda x: x.exp() - x,
        ),
        (
            lambda x: x.exp() - x,
            lambda graph: other_operand(graph, 2),
            lambda x: x.exp() - 2,
        ),
        (lambda x: x.exp() - x, swap_operands, lambda x: x - x.exp()),
    ],
)
def test_edits_of_what_a_node_reads_are_repeated_on_fx(traced, function, edit, expected):
    x = torch.randn(2, 3)
    module = traced(function, x)
    graph_pass(lambda graph, context: edit(graph))
    compiler.apply_passes(module)
    module.graph.lint()
    torch.testing.assert_close(module(x), expected(x))


def test_nodes_whose_type_has_no_members_in_c_are_read_by_name(traced, monkeypatch):
    """Where those members are is a matter of the version of torch."""
    for name in ("op", "target", "name", "_args", "_kwargs"):
        member = getattr(torch.fx.Node, name)
        hidden = property(member.__get__, member.__set__)
        monkeypatch.setattr(torch.fx.Node, name, hidden, raising=False)
    x = torch.randn(2, 3)
    module = traced(lambda x: torch.relu(x), x)
    register_swap("aten::relu", "aten::tanh")
    compiler.apply_passes(module)
    assert torch.equal(module(x), torch.tanh(x))


def test_operator_of_several_outputs_that_is_read_whole_is_one_value():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    parts = graph.call_function(torch.ops.aten.split.Tensor, (x, 2))
    first = graph.call_function(operator.getitem, (parts, 0))
    graph.output((graph.call_function(torch.ops.aten.cat.default, (parts,)), first))
    module = torch.fx.GraphModule(nn.Module(), graph)
    seen = []
    graph_pass(lambda mirrored, context: seen.extend(node.op_type for node in mirrored.nodes))
    compiler.apply_passes(module)
    assert "aten::split.Tensor as a tuple" in seen
    whole, first = module(torch.arange(4.0))
    assert (whole.tolist(), first.tolist()) == ([0, 1, 2, 3], [0, 1])


def test_argument_that_equals_its_default_but_for_the_sign_of_zero_is_written():
    library = torch.library.Library("mirror_zero", "DEF")
    library.define("signed(Tensor x, float sign=0.0) -> Tensor")
    library.impl("signed", lambda x, sign=0.0: torch.copysign(x, sign), "CompositeExplicitAutograd")
    module = make_fx(torch.relu, tracing_mode="fake")(torch.ones(2))

    def replace(graph, context):
        (relu,) = graph.find("aten::relu")
        op = graph.inserting_before(relu).op
        graph.replace_all_uses(relu.output, op("mirror_zero::signed", relu.inputs[0], -0.0))

    graph_pass(replace)
    compiler.apply_passes(module)
    assert "mirror_zero.signed.default(x_1, -0.0)" in module.code.replace("arg0_1", "x_1")


def test_lists_at_their_default_are_left_out_as_tracing_leaves_them_out():
    slots = (("stride", False, True, [1, 1]),)
    assert as_traced(slots, ([1, 1],)) == ((), {})
    for given in ([1], [1, 2], [1, 1, 1]):
        assert as_traced(slots, (given,)) == ((given,), {})


def test_an_operator_with_many_rewritten_inputs_is_written_to_torch_fx_once(traced, monkeypatch):
    def twice(x):
        return torch.cat([torch.relu(torch.relu(x + number)) for number in range(40)])

    register_swap("aten::relu", "aten::tanh")
    module, x = traced(twice, torch.randn(3)), torch.randn(3)
    written, exchange = [], torch.fx.Node.replace_input_with

    def watched(node, old, new):
        written.append(node.target)
        exchange(node, old, new)

    monkeypatch.setattr(torch.fx.Node, "replace_input_with", watched)
    assert compiler.apply_passes(module)["P"].matches == 80
    assert torch.ops.aten.cat.default not in written
    module.graph.lint()
    wanted = torch.cat([torch.tanh(torch.tanh(x + number)) for number in range(40)])
    torch.testing.assert_close(module(x), wanted)
