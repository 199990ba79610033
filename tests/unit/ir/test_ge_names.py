"""GE's names on graphs, nodes, builders and descriptions say what GE's say."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from bringup import compiler, ir, passes


@pytest.fixture
def graph():
    builder = ir.GraphBuilder("ported", ir.aten_schemas())
    assert builder.name == "ported"
    x = builder.create_input(0)
    y, z = builder.create_inputs(2, start_index=1)
    assert x.get_owner_builder() is builder
    total = builder.aten.add(x, y)
    builder.set_graph_output(builder.aten.mul(total, z), 1)
    builder.set_graph_output(total, 0)
    return builder.build_and_reset()


def test_outputs_are_set_by_number(graph):
    assert [value.node.type for value in graph.outputs] == ["aten::add.Tensor", "aten::mul.Tensor"]


def test_inputs_are_created_in_their_order():
    builder = ir.GraphBuilder("g", ir.aten_schemas())
    with pytest.raises(ValueError, match="the next one is number 0, got 1"):
        builder.create_input(1)
    with pytest.raises(ValueError, match="the next one is number 0, got 3"):
        builder.create_inputs(2, start_index=3)


def test_node_tells_its_neighbours_by_port(graph):
    (add,), (mul,) = graph.find("aten::add.Tensor"), graph.find("aten::mul.Tensor")
    assert (add.type, add.get_inputs_size(), add.get_outputs_size()) == ("aten::add.Tensor", 2, 1)
    assert mul.get_in_data_nodes_and_port_indexes(0) == (add, 0)
    assert (mul, 0) in add.get_out_data_nodes_and_port_indexes(0)
    with pytest.raises(IndexError):
        mul.get_in_data_nodes_and_port_indexes(2)


def test_descriptions_are_read_by_port():
    seen = []

    @passes.register_custom_pass(name="Look", stage=passes.PassStage.AFTER_INFER_SHAPE)
    def look(graph, context):
        (mm,) = graph.find("aten::mm")
        seen.extend([mm.get_input_desc(1), mm.get_output_desc(0)])

    compiler.apply_passes(make_fx(torch.mm)(torch.ones(2, 3), torch.ones(3, 4)), ["Look"])
    weight, product = seen
    assert (weight.get_shape().dims, weight.get_data_type()) == ((3, 4), "float32")
    assert (product.shape.get_shape_size(), product.data_type) == (8, "float32")


def test_shape_counts_as_ge_does():
    assert ir.Shape(()).get_shape_size() == 0
    assert ir.Shape(("n", 2)).get_shape_size() == -1
    assert ir.Shape(("n", 2)).is_unknown_shape()
    assert not ir.Shape((2, 3)).is_unknown_shape()


def test_node_is_removed_and_constants_have_their_dtype():
    builder = ir.GraphBuilder("g", ir.aten_schemas())
    x = builder.create_input(0)
    constants = [
        builder.create_const_float(2),
        builder.create_const_int64([1, 2]),
        builder.create_const_int32(3),
    ]
    descs = [constant.value.known_desc for constant in constants]
    assert [desc.dtype for desc in descs] == ["float32", "int64", "int32"]
    dead = builder.aten.relu(x)
    graph = builder.build_and_reset(builder.aten.tanh(x))
    graph.remove_node(dead.value.node)
    assert graph.find("aten::relu") == ()
