"""Nodes and values are handles into the native engine: one object each while it is alive."""

import gc
import subprocess
import sys
import weakref

import pytest
from tests.unit.ir.test_graph import NamedDialect

from bringup import ir
from bringup.errors import ExpiredHandleError, SchemaError


def make():
    """y = relu(x) * x"""
    builder = ir.GraphBuilder("g")
    (x,) = builder.create_inputs(1)
    return builder.build_and_reset(builder.op("aten::relu", x) * x)


def argument_back(argument):
    """What the graph gives back of an argument."""
    graph = make()
    node = graph.insert("demo::call", (graph.inputs[0], argument))
    return node.arguments[1]


def test_node_and_value_are_one_object_while_alive():
    graph = make()
    relu = graph.find_node_by_name("relu")
    assert graph.find("aten::relu")[0] is relu
    assert relu.output is relu.outputs[0] is graph.find_node_by_name("mul").inputs[0]
    assert relu.output.node is relu


def test_what_was_kept_with_a_node_is_there_for_the_next_handle():
    graph = make()
    graph.find_node_by_name("relu").meta["note"] = 1
    graph.find_node_by_name("relu").payload = "data"
    gc.collect()
    assert graph.find_node_by_name("relu").meta == {"note": 1}
    assert graph.find_node_by_name("relu").payload == "data"


def test_handle_keeps_its_graph_alive():
    node = make().find_node_by_name("relu")
    gc.collect()
    assert node.graph.name == "g"
    assert [user.name for user in node.users] == ["mul"]


def test_handles_that_refer_to_each_other_are_collected():
    graph = make()
    graph.find_node_by_name("relu").meta["self"] = graph.nodes
    gone = weakref.ref(graph)
    del graph
    gc.collect()
    assert gone() is None


def test_handle_cannot_be_made():
    with pytest.raises(TypeError, match="handles come from a graph"):
        ir.Node()
    with pytest.raises(TypeError, match="handles come from a graph"):
        ir.Value()


def test_erased_node_is_itself_again_when_the_erase_is_undone():
    graph = make()
    relu = graph.find_node_by_name("relu")

    def erase():
        graph.replace_all_uses(relu.output, graph.inputs[0])
        graph.erase(relu)
        assert relu.is_erased
        assert repr(relu) == "<erased node relu>"
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"), graph.transaction():
        erase()
    assert not relu.is_erased
    assert graph.find_node_by_name("relu") is relu


def test_value_of_an_erased_node_cannot_become_an_argument():
    graph = make()
    relu = graph.find_node_by_name("relu")
    value = relu.output
    graph.replace_all_uses(value, graph.inputs[0])
    graph.erase(relu)
    with pytest.raises(ExpiredHandleError, match="node 'relu' was erased"):
        graph.insert("demo::call", (value,))


def test_value_of_another_graph_may_be_named_but_has_no_reader_there():
    graph, other = make(), make()
    value = other.find_node_by_name("relu").output
    node = graph.insert("demo::call", (value, [value]))
    assert node.inputs == (value, value)
    assert node.arguments == (value, (value,))
    assert [user.name for user in value.users] == ["mul"]


@pytest.mark.parametrize(
    "argument",
    [
        None,
        True,
        0,
        -(2**63),
        2**200,
        1.5,
        float("inf"),
        "text",
        "\udc80",
        b"bytes",
        1 + 2j,
        (1, (2.0, "a"), ()),
        {"key": (1, 2), 3: None, (4, 5): {}},
        slice(1, None, 2),
        frozenset({1}),
        int,
    ],
    ids=repr,
)
def test_arguments_come_back_as_they_went_in(argument):
    back = argument_back(argument)
    assert back == argument
    assert type(back) is type(argument)


def test_lists_come_back_as_tuples_and_what_cannot_be_hashed_as_itself():
    class Unhashable:
        __hash__ = None

    thing = Unhashable()
    assert argument_back([1, [2]]) == (1, (2,))
    assert argument_back(thing) is thing


def test_subclass_of_a_number_keeps_its_type():
    class Size(int):
        pass

    assert type(argument_back(Size(3))) is Size


def test_argument_that_holds_itself_is_an_error():
    endless = []
    endless.append(endless)
    with pytest.raises(RecursionError):
        argument_back(endless)


def test_keywords_are_read_only_and_count_as_reads():
    graph = make()
    relu = graph.find_node_by_name("relu")
    node = graph.insert_call(ir.Operator("fx::call"), (), {"x": relu.output, "n": 3})
    assert dict(node.keywords) == {"x": relu.output, "n": 3}
    assert node in relu.users
    with pytest.raises(TypeError):
        node.keywords["n"] = 4


def test_operator_of_a_node_is_the_one_it_was_made_with():
    operator = ir.Operator(
        "demo::two", (ir.Parameter("a", "Tensor"),), output_count=2, mutates=frozenset({0})
    )
    graph = make()
    node = graph.insert_call(operator, (graph.inputs[0],))
    assert node.operator is operator
    assert len(node.outputs) == 2
    assert not node.pure


def test_structure_nodes_have_operators_of_the_engine():
    graph = make()
    assert graph.inputs[0].node.operator == ir.Operator(ir.INPUT)
    assert graph.output_node.operator == ir.Operator(ir.OUTPUT, output_count=0)


def test_edits_are_made_objects_when_they_are_looked_at():
    graph = make()
    with graph.transaction("rule") as edits:
        relu = graph.find_node_by_name("relu")
        assert len(edits) == 0
        graph.replace_all_uses(relu.output, graph.inputs[0])
        assert isinstance(edits[-1], ir.Rewire)
        graph.erase(relu)
    assert [type(edit).__name__ for edit in edits] == ["Rewire", "Erase"]
    assert edits[0].old_arguments[0] is not edits[0].arguments[0]
    assert [edit.node.name for edit in edits[:1]] == ["mul"]
    with pytest.raises(IndexError, match="edit 2 of a journal of 2"):
        _ = edits[2]


def test_refused_new_node_leaves_no_trace():
    class Refusing(NamedDialect):
        def bind(self, op_type, arguments, keywords):
            return ir.Operator(op_type, output_count=None), tuple(arguments)

        def infer(self, node, instead_of=None):
            raise SchemaError(f"no {node.op_type} of {len(node.inputs)}")

    graph = ir.Graph("g", Refusing())
    x = graph.add_input("x", meta=object())
    before = str(graph.find(ir.OUTPUT)), len(graph)
    with pytest.raises(Exception, match="no demo::call of 1"):
        graph.insert("demo::call", (x,))
    assert (str(graph.find(ir.OUTPUT)), len(graph)) == before
    assert x.users == ()


def test_without_the_native_core_the_import_says_what_to_do():
    program = """
import sys
sys.modules["bringup._native._core"] = None
try:
    import bringup.ir
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.startswith("NativeLibraryError bringup's native core cannot be loaded")
