"""Attributes, subgraphs, ports, constants, shape inference by stage, DOT."""

import numpy as np
import pytest
import torch

from bringup import compiler, ir, passes
from bringup.errors import ExpiredHandleError, PassError


def make(name="g"):
    """split(relu(x)) -> add."""
    builder = ir.GraphBuilder(name)
    (x,) = builder.create_inputs(1)
    left, right = builder.op("demo::split", builder.op("demo::relu", x), outputs=2)
    return builder.build_and_reset(builder.op("demo::add", left, right))


def node(graph, name):
    return graph.find(f"demo::{name}")[0]


# Attributes


def test_attributes_of_graph_and_node_are_set_read_and_listed():
    graph = make()
    graph.set_attr("level", 2)
    assert (graph.has_attr("level"), graph.get_attr("level")) == (True, 2)
    assert dict(graph.attributes) == {"level": 2}
    with pytest.raises(KeyError, match=r"graph 'g' has no attribute 'depth'; it has \['level'\]"):
        graph.get_attr("depth")
    relu = node(graph, "relu")
    relu.set_attr("stream_label", "left")
    assert (relu.has_attr("stream_label"), relu.get_attr("stream_label")) == (True, "left")
    with pytest.raises(
        KeyError, match=r"node 'relu' .* no attribute 'x'; it has \['stream_label'\]"
    ):
        relu.get_attr("x")


def test_attribute_with_a_schema_name_is_the_argument():
    builder = ir.GraphBuilder("g", ir.aten_schemas())
    (x,) = builder.create_inputs(1)
    graph = builder.build_and_reset(builder.aten.gelu(x))
    (gelu,) = graph.find("aten::gelu")
    assert gelu.get_attr("approximate") == "none"
    gelu.set_attr("approximate", "tanh")
    assert gelu.argument("approximate") == "tanh"
    assert gelu.get_attr("self") is graph.inputs[0]


def test_attributes_and_subgraphs_are_undone_with_the_transaction():
    graph, inner = make(), make("inner")
    graph.set_attr("level", 1)

    def edit():
        graph.set_attr("level", 2)
        graph.set_attr("new", True)
        node(graph, "relu").set_attr("label", "x")
        graph.add_subgraph("body", inner, node(graph, "add"))
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"), graph.transaction("rule"):
        edit()
    assert dict(graph.attributes) == {"level": 1}
    assert not node(graph, "relu").has_attr("label")
    assert graph.get_all_subgraphs() == ()
    assert inner.get_parent_graph() is None


# Subgraphs


def test_subgraph_knows_its_parent_and_is_found_and_removed():
    graph, body, deeper = make(), make("body"), make("deeper")
    caller = node(graph, "add")
    graph.add_subgraph("then", body, caller)
    body.add_subgraph("inner", deeper, node(body, "relu"))
    assert graph.get_subgraph("then") is body
    assert graph.get_all_subgraphs() == (body,)
    assert (body.get_parent_graph(), body.get_parent_node()) == (graph, caller)
    assert (graph.get_parent_graph(), graph.get_parent_node()) == (None, None)
    assert graph.get_direct_nodes() == graph.nodes
    assert graph.get_all_nodes() == (*graph.nodes, *body.nodes, *deeper.nodes)
    assert graph.remove_subgraph("then") is body
    assert body.get_parent_graph() is None
    with pytest.raises(KeyError, match=r"graph 'g' has no subgraph 'then'; it has \[\]"):
        graph.get_subgraph("then")


def test_wrong_subgraphs_are_refused():
    graph, body = make(), make("body")
    graph.add_subgraph("then", body)
    assert body.get_parent_node() is None
    with pytest.raises(ValueError, match="graph 'g' has a subgraph 'then' already"):
        graph.add_subgraph("then", make())
    with pytest.raises(ValueError, match="graph 'body' is a subgraph already"):
        make().add_subgraph("x", body)
    with pytest.raises(ValueError, match="graph 'g' cannot hold itself"):
        body.add_subgraph("x", graph)
    with pytest.raises(ValueError, match="belongs to another graph"):
        graph.add_subgraph("x", make("other"), node(body, "relu"))


def test_subgraph_expires_with_its_graph():
    graph, body = make(), make("body")
    graph.add_subgraph("then", body, node(graph, "add"))
    relu = node(body, "relu")
    graph.expire()
    for use in (lambda: body.nodes, lambda: relu.name, lambda: graph.get_attr("x")):
        with pytest.raises(ExpiredHandleError, match="graph handle has expired"):
            use()


# Ports and neighbours


def test_anchors_lead_from_port_to_port():
    graph = make()
    split, add = node(graph, "split"), node(graph, "add")
    left, right = split.get_all_out_anchors()
    first, second = add.get_all_in_anchors()
    assert (first.peer, second.peer) == (left, right)
    assert left.peers == (first,)
    assert right.value is add.inputs[1]
    assert add.get_in_data_nodes() == (split,)
    assert split.get_out_data_nodes() == (add,)
    assert (add.get_in_control_nodes(), split.get_out_control_nodes()) == ((), ())


def test_control_nodes_are_those_that_writes_keep_in_order():
    builder = ir.GraphBuilder("g", compiler.AtenDialect())
    x, y = builder.create_inputs(2)
    first = builder.op("aten::relu", x)
    written = builder.op("aten::add_", x, y)
    other = builder.op("aten::exp", y)
    graph = builder.build_and_reset([first, written, other])
    relu, add, exp = (graph.find(f"aten::{name}")[0] for name in ("relu", "add_.Tensor", "exp"))
    assert add.get_in_control_nodes() == (relu,)
    assert relu.get_out_control_nodes() == (add,)
    assert exp.get_in_control_nodes() == ()


def test_control_edges_are_added_once_read_from_both_ends_and_removed():
    graph = make()
    relu, add = node(graph, "relu"), node(graph, "add")
    graph.add_control_edge(relu, add)
    graph.add_control_edge(relu, add)
    assert (add.control_inputs, relu.control_users) == ((relu,), (add,))
    assert (add.get_in_control_nodes(), relu.get_out_control_nodes()) == ((relu,), (add,))
    assert graph.has_control_edges
    graph.remove_control_edge(relu, add)
    assert not graph.has_control_edges
    with pytest.raises(ValueError, match="no control edge leads from 'relu' to 'add'"):
        graph.remove_control_edge(relu, add)


def test_control_edges_lead_from_operators_and_inputs_to_operators():
    graph = make()
    relu = node(graph, "relu")
    constant = graph.add_constant(None).node
    source = graph.inputs[0].node
    graph.add_control_edge(source, relu)
    for first, last in [
        (relu, relu),
        (relu, source),
        (constant, relu),
        (relu, constant),
        (relu, graph.output_node),
        (graph.output_node, relu),
    ]:
        with pytest.raises(ValueError, match="no control edge can lead from"):
            graph.add_control_edge(first, last)
    with pytest.raises(ValueError, match="belongs to another graph"):
        graph.add_control_edge(node(make(), "split"), relu)


def add_and_fail(graph, source, target):
    late = graph.inserting_before(graph.output_node).op("aten::exp", graph.inputs[0]).value.node
    graph.add_control_edge(source, target)
    graph.add_control_edge(late, target)
    graph.erase(late)


def test_control_edges_are_undone_and_hold_their_source():
    graph = make()
    relu, add = node(graph, "relu"), node(graph, "add")
    with graph.transaction():
        with pytest.raises(ValueError, match="has a control edge"), graph.savepoint():
            add_and_fail(graph, relu, add)
        assert not graph.has_control_edges
    late = graph.inserting_before(graph.output_node).op("aten::exp", graph.inputs[0]).value.node
    graph.add_control_edge(late, add)
    with pytest.raises(ValueError, match="has a control edge from it; remove the edge first"):
        graph.erase(late)


def test_control_edges_are_printed():
    graph = make()
    graph.add_control_edge(node(graph, "relu"), node(graph, "add"))
    assert ") after %relu" in str(graph)
    assert "[style=dotted];" in graph.to_dot()


def test_builder_makes_control_dependencies():
    builder = ir.GraphBuilder("g")
    (x,) = builder.create_inputs(1)
    first, second = builder.op("t::a", x), builder.op("t::b", x)
    with (
        builder.control_dependency_scope([first]),
        builder.control_dependency_scope(second.value.node),
    ):
        third = builder.op("t::c", x)
    fourth = builder.op("t::d", x)
    builder.add_control_dependency(first, fourth)
    graph = builder.build_and_reset([third])
    assert third.value.node.control_inputs == (first.value.node, second.value.node)
    assert [item.op_type[3:] for item in graph.nodes[1:-1]] == ["d", "a", "b", "c"]
    with pytest.raises(TypeError, match="a control dependency is a holder, value or node"):
        graph.inserting_before(graph.output_node).add_control_dependency(third.value, 3)


def test_builder_refuses_control_dependencies_in_a_circle_and_on_other_graphs():
    builder, other = ir.GraphBuilder("g"), ir.GraphBuilder("other")
    (x,), (y,) = builder.create_inputs(1), other.create_inputs(1)
    first = builder.op("t::a", x)
    second = builder.op("t::b", first)
    with pytest.raises(ValueError, match="was made by another builder"):
        builder.add_control_dependency(first, y)
    with pytest.raises(ValueError, match="belongs to another graph"):
        builder.add_control_dependency(first, y.value)
    builder.add_control_dependency(first, second)
    with pytest.raises(PassError, match="it would make a cycle"):
        builder.build_and_reset(second)


# Constants


@pytest.mark.parametrize(
    ("values", "dtype", "shape", "expected"),
    [
        (2, None, (), torch.tensor(2)),
        (2.5, None, (), torch.tensor(2.5)),
        (True, None, (), torch.tensor(True)),
        ([1, 2], None, (2,), torch.tensor([1, 2])),
        ([[1.0], [2]], None, (2, 1), torch.tensor([[1.0], [2.0]])),
        ([1, 2], "float16", (2,), torch.tensor([1, 2], dtype=torch.float16)),
        ([1.0, 3.14159], "bfloat16", (2,), torch.tensor([1.0, 3.14159]).to(torch.bfloat16)),
        (np.arange(3, dtype=np.int32), None, (3,), torch.arange(3, dtype=torch.int32)),
        (np.zeros((2, 0)), None, (2, 0), torch.zeros(2, 0, dtype=torch.float64)),
        (1 + 2j, None, (), torch.tensor(1 + 2j)),
    ],
)
def test_constant_is_the_tensor_that_torch_would_make(values, dtype, shape, expected):
    builder = ir.GraphBuilder()
    constant = builder.create_constant(values, dtype)
    assert constant.value.known_desc.shape.dims == shape
    graph = builder.build_and_reset(builder.op("aten::clone", constant))
    graph.bind(compiler.AtenDialect())
    payload = graph.find(ir.CONSTANT)[0].payload
    assert payload.dtype == expected.dtype
    assert torch.equal(payload, expected)


@pytest.mark.parametrize(
    ("values", "dtype", "error", "text"),
    [
        ("text", None, TypeError, "make no tensor of numbers: 'text'"),
        ([[1], [2, 3]], None, TypeError, "these values make no tensor"),
        ([object()], None, TypeError, "make no tensor of numbers"),
        ([1], "float8", ValueError, "no constant of dtype 'float8'"),
        (torch.ones(1), "float16", TypeError, "a tensor has its own dtype"),
    ],
)
def test_values_that_make_no_constant_are_refused(values, dtype, error, text):
    with pytest.raises(error, match=text):
        ir.GraphBuilder().create_constant(values, dtype)


def test_scalars_and_vectors_take_only_that():
    builder = ir.GraphBuilder()
    assert str(builder.create_scalar(3).value.desc) == "int64[]"
    assert str(builder.create_vector([1.0, 2.0], "float64").value.desc) == "float64[2]"
    assert str(builder.create_vector([]).value.desc) == "float32[0]"
    with pytest.raises(TypeError, match=r"a scalar is made from a number, got \[1\]"):
        builder.create_scalar([1])
    with pytest.raises(TypeError, match="a vector is made from numbers"):
        builder.create_vector([[1]])


def test_operators_take_lists_and_arrays_as_constants_and_numbers_as_numbers():
    builder = ir.GraphBuilder()
    (x,), row = builder.create_inputs(1), [1.0, 2.0]
    graph = builder.build_and_reset(2 / ((x + row) * np.ones(2, np.float32)) ** 2)
    types = [item.op_type for item in graph.nodes if item.op_type.startswith("aten")]
    assert types == [f"aten::{name}" for name in ("add", "mul", "pow", "reciprocal", "mul")]
    assert len(graph.find(ir.CONSTANT)) == 2
    graph.bind(compiler.AtenDialect())
    assert graph.find("aten::pow.Tensor_Scalar")[0].argument("exponent") == 2


# Shapes by stage


def built(shape=(4, 8)):
    builder = ir.GraphBuilder("built")
    x = builder.create_input("x", shape=shape)
    return builder.build_and_reset(builder.op("aten::relu", builder.op("aten::neg", x)))


def reading(stage, seen):
    @passes.register_custom_pass(name=f"Read{stage.name}", stage=stage)
    def read(graph, context):
        seen.append(str(graph.inputs[0].desc))
        seen.append(str(graph.find("aten::neg")[0].output.desc))


@pytest.fixture
def registry():
    passes.shutdown()
    yield
    passes.shutdown()


def test_pass_before_shape_inference_may_not_read_inferred_shapes(registry):
    """Those that an input was declared with, it may."""
    seen = []
    reading(passes.PassStage.BEFORE_INFER_SHAPE, seen)
    with pytest.raises(PassError, match="the shape of 'neg' is not inferred yet: register the"):
        compiler.apply_passes(built())
    assert seen == ["float32[4, 8]"]


def test_shapes_are_inferred_between_the_first_two_stages(registry):
    seen = []
    graph = built()
    reading(passes.PassStage.AFTER_INFER_SHAPE, seen)
    compiler.apply_passes(graph)
    assert seen == ["float32[4, 8]"] * 2
    assert str(graph.outputs[0].desc) == "float32[4, 8]"


def test_shape_that_cannot_be_inferred_names_the_node(registry, capfd):
    builder = ir.GraphBuilder("wrong")
    x = builder.create_input("x", shape=(4, 8))
    graph = builder.build_and_reset(builder.op("aten::mm", x, x))
    with pytest.raises(PassError, match=r"the shapes of %mm = .* cannot be inferred"):
        compiler.apply_passes(graph)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("shape", [None, ("batch", 8)])
def test_graph_with_an_undescribed_or_symbolic_input_keeps_unknown_shapes(registry, shape):
    graph = built(shape)
    reading(passes.PassStage.BEFORE_INFER_SHAPE, seen := [])
    compiler.apply_passes(graph)
    assert seen[1] == "None"


def test_fx_graph_has_its_shapes_at_every_stage(registry):
    from torch.fx.experimental.proxy_tensor import make_fx

    seen = []
    reading(passes.PassStage.BEFORE_INFER_SHAPE, seen)
    compiler.apply_passes(make_fx(torch.neg, tracing_mode="fake")(torch.ones(3)))
    assert seen == ["float32[3]"] * 2


# Printing


def test_dot_has_boxes_edges_shapes_and_subgraphs():
    graph, body = built(), make('a "body"')
    graph.add_subgraph("then", body, graph.find("aten::relu")[0])
    text = graph.to_dot()
    assert text.startswith('digraph "built" {')
    assert 'n_1 [label="neg\\naten::neg"];' in text
    assert 'n_0 -> n_1 [label="float32[4, 8]"];' in text
    assert 'label="a \\"body\\"";' in text
    assert "[style=dashed];" in text
    assert text.count("{") == text.count("}") == 2
    assert '  graph a "body":' in str(graph)
