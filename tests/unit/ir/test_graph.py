"""The graph: reading it, editing it, and handles that end with an exception."""

import pytest

from bringup import ir
from bringup.errors import ExpiredHandleError


def make():
    """y = exp(relu(x)) * x, without a dialect."""
    builder = ir.GraphBuilder("g")
    (x,) = builder.create_inputs(1)
    inner = builder.op("aten::exp", builder.op("aten::relu", x))
    return builder.build_and_reset(inner * x)


def test_nodes_values_and_users_are_reachable_from_each_other():
    graph = make()
    (relu,), (mul,) = graph.find("aten::relu"), graph.find("aten::mul")
    (x,) = graph.inputs
    assert [user.name for user in x.users] == ["relu", "mul"]
    assert relu.inputs == (x,)
    assert relu.output.users == graph.find("aten::exp")
    assert graph.outputs == (mul.output,)
    assert graph.find_node_by_name("mul") is mul
    assert relu.is_before(mul)
    assert (len(graph), graph.count("aten::relu"), graph.count("aten::neg")) == (5, 1, 0)


def test_text_shows_every_node_in_order():
    assert str(make()).splitlines() == [
        "graph g:",
        "  %input_0 = ir::input()",
        "  %relu = aten::relu(%input_0)",
        "  %exp = aten::exp(%relu)",
        "  %mul = aten::mul(%exp, %input_0)",
        "  ir::output(%mul)",
    ]


def test_unknown_node_name_is_a_key_error_naming_graph_and_node():
    with pytest.raises(KeyError, match="graph 'g' has no node named 'gone'"):
        make().find_node_by_name("gone")


def test_erasing_a_node_that_is_read_is_refused_and_names_the_reader():
    graph = make()
    with pytest.raises(ValueError, match="node 'relu' cannot be erased: 'exp' still reads it"):
        graph.erase(graph.find_node_by_name("relu"))
    with pytest.raises(ValueError, match="the output node of a graph cannot be erased"):
        graph.erase(graph.output_node)


def test_erased_node_is_an_expired_handle():
    graph = make()
    (relu,) = graph.find("aten::relu")
    value = relu.output
    graph.replace_all_uses(relu.output, graph.inputs[0])
    graph.erase(relu)
    with pytest.raises(
        ExpiredHandleError, match="graph handle has expired: node 'relu' was erased"
    ):
        _ = relu.inputs
    with pytest.raises(ExpiredHandleError, match="node 'relu' was erased"):
        _ = value.users


def test_expired_graph_ends_every_handle_into_it():
    graph = make()
    node = graph.find_node_by_name("mul")
    graph.expire()
    for use in (lambda: graph.nodes, lambda: node.name, lambda: node.output, lambda: len(graph)):
        with pytest.raises(ExpiredHandleError, match="graph handle has expired"):
            use()


def test_failed_transaction_restores_order_arguments_and_nodes():
    graph = make()
    before = str(graph)

    def edit_everything():
        relu, exp = graph.find_node_by_name("relu"), graph.find_node_by_name("exp")
        new = graph.inserting_before(relu).op("aten::neg", graph.inputs[0])
        graph.replace_all_uses(exp.output, new)
        graph.erase_dead(exp)
        graph.move_before(new.value.node, graph.output_node)
        assert graph.count("aten::relu") == 0
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"), graph.transaction("rule"):
        edit_everything()
    assert str(graph) == before
    assert graph.find_node_by_name("relu").users == graph.find("aten::exp")


def test_transactions_do_not_nest():
    graph = make()
    with (
        graph.transaction("first"),
        pytest.raises(RuntimeError, match="already being edited by 'first'"),
        graph.transaction("second"),
    ):
        pass


def test_edits_of_a_transaction_are_listed_and_new_nodes_carry_the_rule():
    graph = make()
    with graph.transaction("rule") as edits:
        exp = graph.find_node_by_name("exp")
        new = graph.inserting_before(exp).op("aten::neg", exp.inputs[0])
        graph.replace_all_uses(exp.output, new)
        graph.erase(exp)
    assert [type(edit) for edit in edits] == [ir.Insert, ir.Rewire, ir.Erase]
    assert new.value.node.meta["rule"] == "rule"


def test_replacing_uses_leaves_the_new_values_own_node_alone():
    graph = make()
    (relu,) = graph.find("aten::relu")
    new = graph.inserting_before(graph.find_node_by_name("exp")).op("aten::neg", relu.output)
    graph.replace_all_uses(relu.output, new)
    assert relu.output.users == (new.value.node,)


def test_erase_dead_takes_what_only_the_dead_read():
    graph = make()
    (mul,) = graph.find("aten::mul")
    graph.set_outputs(graph.inputs[0])
    graph.erase_dead(mul)
    assert [node.op_type for node in graph.nodes] == [ir.INPUT, ir.OUTPUT]


def test_many_insertions_at_one_place_keep_the_order():
    graph = make()
    exp = graph.find_node_by_name("exp")
    builder = graph.inserting_before(exp)
    made = [builder.op("aten::neg", graph.inputs[0]).value.node for _ in range(200)]
    assert [node for node in graph.nodes if node.op_type == "aten::neg"] == made
    orders = [node.order for node in graph.nodes]
    assert orders == sorted(set(orders))


def test_nodes_of_another_graph_are_refused():
    graph, other = make(), make()
    with pytest.raises(ValueError, match="node 'relu' belongs to another graph than 'g'"):
        graph.erase(other.find_node_by_name("relu"))
    with pytest.raises(TypeError, match="expected a value or holder of graph 'g', got 3"):
        graph.replace_all_uses(3, graph.inputs[0])


def test_shape_and_description_compare_by_value():
    symbolic = ir.Shape(("s0", 4))
    assert symbolic == ir.Shape(("s0", 4))
    assert (symbolic.rank, symbolic.is_static, str(symbolic), symbolic[0]) == (
        2,
        False,
        "[s0, 4]",
        "s0",
    )
    with pytest.raises(ValueError, match=r"the shape \[s0, 4\] has symbolic sizes"):
        _ = symbolic.numel
    assert ir.Shape((2, 3)).numel == 6
    assert str(ir.TensorDesc(symbolic, "float32")) == "float32[s0, 4]"


def test_node_without_an_output_has_none_to_give():
    graph = make()
    with pytest.raises(ValueError, match=r"node 'output' \(ir::output\) has no output"):
        graph.output_node.output  # noqa: B018


class NamedDialect(ir.Dialect):
    """As little of a dialect as there may be."""

    name = "test"

    def bind(self, op_type, arguments, keywords):
        return ir.Operator(op_type), tuple(arguments)

    def infer(self, node, instead_of=None):
        return (None,) * (node.operator.output_count or 1)

    def difference(self, old, new):
        return None

    def evaluate(self, node, constants):
        raise NotImplementedError

    def constant_meta(self, payload):
        return None


def test_graph_is_bound_to_one_dialect_only():
    graph = make()
    graph.bind(NamedDialect())
    with pytest.raises(ValueError, match="graph 'g' is bound to the dialect 'test' already"):
        graph.bind(NamedDialect())
