"""Constants are computed once: what is folded, what is left alone, what a bad dialect leaves."""

import pytest
from tests.unit.passes.plain import PlainDialect

from bringup import ir
from bringup.errors import PassError
from bringup.passes.run.folding import fold_constants


class Counting(PlainDialect):
    """Constants are numbers; `t::add` adds, `t::split2` gives a number and its double."""

    _gives_too_few = False

    def __init__(self):
        self.evaluated = []

    def bind(self, op_type, arguments, keywords):
        operator, bound = super().bind(op_type, arguments, keywords)
        parameters = tuple(ir.Parameter(f"p{i}", "Tensor") for i in range(len(bound)))
        return ir.Operator(
            op_type,
            parameters=() if op_type == "t::unknown" else parameters,
            output_count=operator.output_count,
            mutates=operator.mutates,
            random=operator.random,
        ), bound

    def constant_meta(self, payload):
        return None

    def can_fold(self, node):
        return node.op_type != "t::kept"

    def evaluate(self, node, constants):
        self.evaluated.append(node.op_type)
        numbers = [constants[value] for value in node.inputs]
        if node.op_type == "t::split2":
            return (numbers[0],) if self._gives_too_few else (numbers[0], 2 * numbers[0])
        if node.op_type == "t::fails":
            raise ArithmeticError("no such number")
        return (sum(numbers),)


@pytest.fixture
def graph():
    return ir.Graph("g", Counting())


def payloads(graph):
    return [node.payload for node in graph.find(ir.CONSTANT)]


def call(graph, op_type, *values):
    return graph.insert(op_type, values).outputs


def test_a_chain_is_computed_and_only_what_is_read_becomes_a_constant(graph):
    x, one = graph.add_input(), graph.add_constant(1)
    first, double = call(graph, "t::split2", one)
    (three,) = call(graph, "t::add", first, double)
    (five,) = call(graph, "t::add", three, double)
    (out,) = call(graph, "t::add", x, five)
    graph.set_outputs(out)
    assert fold_constants(graph) == 3
    assert [node.op_type for node in graph.nodes if node.inputs and node.outputs] == ["t::add"]
    assert payloads(graph) == [1, 5]


def test_an_operator_that_reads_one_value_twice_is_given_it_twice(graph):
    x, four = graph.add_input(), graph.add_constant(4)
    (eight,) = call(graph, "t::add", four, four)
    (out,) = call(graph, "t::add", x, eight)
    graph.set_outputs(out)
    assert fold_constants(graph) == 1
    assert out.node.inputs[1].node.payload == 8


@pytest.mark.parametrize("op_type", ["t::kept", "t::random", "t::unknown", "t::write"])
def test_what_may_not_be_computed_once_is_left_alone(graph, op_type):
    x, one = graph.add_input(), graph.add_constant(1)
    (made,) = call(graph, op_type, one)
    graph.set_outputs(*call(graph, "t::add", x, made))
    assert fold_constants(graph) == 0
    assert graph.dialect.evaluated == []


def test_what_is_returned_keeps_memory_of_its_own(graph):
    one = graph.add_constant(1)
    graph.set_outputs(*call(graph, "t::add", one, one))
    assert fold_constants(graph) == 0


def test_a_constant_without_a_payload_is_not_known(graph):
    x, one = graph.add_input(), graph.add_constant(None)
    graph.set_outputs(*call(graph, "t::add", x, *call(graph, "t::add", one, one)))
    assert fold_constants(graph) == 0


def test_what_a_dialect_raises_passes_through_and_nothing_stays_half_folded(graph):
    x, one = graph.add_input(), graph.add_constant(1)
    (three,) = call(graph, "t::add", one, one)
    (bad,) = call(graph, "t::fails", three)
    graph.set_outputs(*call(graph, "t::add", x, bad))
    before = str(graph)
    with pytest.raises(ArithmeticError, match="no such number"), graph.transaction("fold"):
        fold_constants(graph)
    assert str(graph) == before


def test_a_dialect_that_gives_too_few_results_is_an_error_that_names_the_node(graph):
    x, one = graph.add_input(), graph.add_constant(1)
    first, _ = call(graph, "t::split2", one)
    graph.set_outputs(*call(graph, "t::add", x, first))
    graph.dialect._gives_too_few = True
    with pytest.raises(PassError, match=r"evaluation of 'split2.*' gave 1 results, it has 2"):
        fold_constants(graph)
