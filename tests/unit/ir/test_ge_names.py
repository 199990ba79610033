"""GE's names on graphs, nodes, builders and descriptions say what GE's say."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from bringup import compiler, ir, passes
from bringup.passes import bootstrap


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


GE_PASSES = [
    "FusionBasePass",
    "PatternFusionPass",
    "DecomposePass",
    "register_fusion_pass",
    "register_decompose_pass",
    "PassStage",
    "PassContext",
    "Pattern",
    "NodeIo",
    "MatchResult",
    "PatternMatcherConfig",
    "PatternMatcherConfigBuilder",
    "capture_tensor",
    "create_pattern",
    "create_replacement",
    "load_pass_plugins",
    "get_registered_passes",
]


def test_all_names_of_ge_passes_are_here():
    assert set(GE_PASSES) <= set(passes.__all__)
    assert callable(bootstrap.load_pass_plugins)


def test_create_replacement_returns_the_graph(graph):
    assert passes.create_replacement(graph) is graph
    with pytest.raises(TypeError, match=r"made from an ir\.Graph, got str"):
        passes.create_replacement("graph")


def test_subgraph_is_added_by_its_own_name(graph):
    inner = ir.Graph("inner", graph.dialect)
    graph.add_subgraph(inner)
    assert graph.get_subgraph("inner") is inner
    with pytest.raises(TypeError, match="takes a graph, or a name and a graph, got 'other'"):
        graph.add_subgraph("other")


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
def test_constants_of_unsigned_dtypes_are_made(dtype):
    largest = 2 ** int(dtype[4:]) - 1
    builder = ir.GraphBuilder("g", compiler.AtenDialect())
    held = builder.create_vector([0, largest], dtype)
    assert (held.value.desc.dtype, held.value.desc.shape.dims) == (dtype, (2,))
    builder.set_graph_output(builder.op("aten::clone", held), 0)
    assert builder.build_and_reset().find("aten::clone")


def test_patterns_of_a_class_of_expressions_are_patterns():
    class Twice(passes.PatternFusionPass):
        @passes.pattern
        def twice(self, inputs):
            op = inputs[0].builder.op
            return op("aten::relu", op("aten::relu", inputs[0]))

    (found,) = Twice().patterns()
    assert isinstance(found, passes.Pattern)
    assert [node.op_type for node in found.graph.find("aten::relu")] == ["aten::relu"] * 2


def test_nodes_with_conflicting_attributes_are_not_fused(graph):
    (add,), (mul,) = graph.find("aten::add.Tensor"), graph.find("aten::mul.Tensor")
    assert passes.can_fuse([add, mul])
    for name in ("_user_stream_label", "_op_aicore_num"):
        add.set_attr(name, "1")
        assert passes.can_fuse([add, mul])
        mul.set_attr(name, "2")
        reason = passes.can_fuse([add, mul]).reason
        assert reason == f"the nodes have different {name}s: '1' (add), '2' (mul)"
        mul.set_attr(name, "1")


def test_overload_is_found_where_a_constant_stands_for_a_tensor_or_a_list_is_open():
    builder = ir.GraphBuilder("g", compiler.AtenDialect())
    x = builder.create_input(0)
    calls = {
        "aten::addmm": (passes.constant(), x, passes.constant()),
        "aten::view": (x, [5, passes.any_value("n")]),
        "aten::add.Tensor": (x, passes.constant(1)),
    }
    for op_type, arguments in calls.items():
        made = builder.op(op_type.partition(".")[0], *arguments)
        assert made.value.node.op_type == op_type


def test_tensor_of_a_traced_graph_is_a_constant_when_frozen():
    held = torch.tensor([1.0, 2.0])

    @passes.register_fusion_pass(name="Held", stage=passes.PassStage.AFTER_INFER_SHAPE)
    class Held(passes.PatternFusionPass):
        @passes.pattern
        def sum(self, inputs):
            return inputs[0].builder.op("aten::add.Tensor", inputs[0], passes.constant([1.0, 2.0]))

        def replacement(self, inputs):
            return inputs[0].builder.op("aten::neg", inputs[0])

    try:
        for options, matches in (({}, 0), ({"freeze": True}, 1)):
            module = make_fx(lambda x: torch.relu(x + held))(torch.ones(2))
            report = compiler.apply_passes(module, ["Held"], options=options)
            assert report.matches == {"Held": matches}
    finally:
        passes.unregister_pass("Held")
