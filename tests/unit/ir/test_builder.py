"""Building graphs in eager style."""

import pytest

from bringup import compiler, ir
from bringup.errors import ExpiredHandleError


def test_operators_of_holders_become_nodes():
    builder = ir.GraphBuilder()
    x, y = builder.create_inputs(2)
    graph = builder.build_and_reset(-(2 * (x @ y) + 1.0 - y) / (1 - x))
    types = [node.op_type for node in graph.nodes if not node.op_type.startswith("ir::")]
    assert types == [
        f"aten::{name}" for name in ("matmul", "mul", "add", "sub", "neg", "rsub", "div")
    ]


def test_an_input_of_a_bound_graph_has_what_its_dialect_infers_from():
    builder = ir.GraphBuilder("g", compiler.AtenDialect())
    x = builder.create_input(shape=(2, 3))
    assert list(builder.build_and_reset(-x).inputs[0].meta.shape) == [2, 3]


def test_builder_is_used_up_by_building():
    builder = ir.GraphBuilder()
    (x,) = builder.create_inputs(1)
    builder.build_and_reset(x + x)
    for use in (lambda: builder.create_input(), lambda: x + x, lambda: builder.build_and_reset(x)):
        with pytest.raises(ExpiredHandleError, match="this builder built its graph"):
            use()


def test_holders_of_two_builders_do_not_mix():
    first, second = ir.GraphBuilder("first"), ir.GraphBuilder("second")
    (x,), (y,) = first.create_inputs(1), second.create_inputs(1)
    with pytest.raises(
        ValueError, match=r"was made by another builder \(of graph 'second', not 'first'\)"
    ):
        _ = x + y


def test_several_outputs_come_as_a_tuple_when_their_number_is_given():
    builder = ir.GraphBuilder()
    (x,) = builder.create_inputs(1)
    left, right = builder.op("demo::split", x, outputs=2)
    graph = builder.build_and_reset([right, left])
    assert [value.name for value in graph.outputs] == ["split:1", "split:0"]


def test_unpacking_one_tensor_is_a_type_error_that_says_what_to_do():
    builder = ir.GraphBuilder()
    (x,) = builder.create_inputs(1)
    with pytest.raises(TypeError, match="is one tensor and cannot be unpacked"):
        _left, _right = builder.op("demo::split", x)


def test_graph_needs_an_output_and_inputs_a_sensible_number():
    builder = ir.GraphBuilder("empty")
    with pytest.raises(ValueError, match="graph 'empty' needs at least one output"):
        builder.build_and_reset([])
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        builder.create_inputs(-1)


def test_builder_over_a_live_graph_only_inserts():
    builder = ir.GraphBuilder()
    (x,) = builder.create_inputs(1)
    graph = builder.build_and_reset(x + x)
    inserting = graph.inserting_before(graph.output_node)
    with pytest.raises(ValueError, match="cannot give it new inputs"):
        inserting.create_input()
    with pytest.raises(ValueError, match="has nothing to build"):
        inserting.build_and_reset(graph.inputs[0])
