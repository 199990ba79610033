"""The base class of dialects: what a subclass may have, and what it need not say."""

import math

import pytest
from tests.unit.ir.test_graph import NamedDialect

from bringup import ir


def test_a_misspelt_method_is_refused_where_the_dialect_is_defined():
    with pytest.raises(TypeError, match=r"Typo has 'read_strides', which is not read.*own="):
        type("Typo", (ir.Dialect,), {"read_strides": lambda self, node: True})


def test_names_of_its_own_are_listed_or_begin_with_an_underscore():
    class Own(NamedDialect, own=("version",)):
        version = 3

        def _helper(self):
            return self.version

    assert Own()._helper() == 3


def test_names_that_a_dialect_lists_are_not_those_of_its_subclasses():
    class Own(NamedDialect, own=("version",)):
        version = 3

    with pytest.raises(TypeError, match="'versions'"):
        type("Other", (Own,), {"versions": 4})
    assert type("Newer", (Own,), {"version": 4})().version == 4


def test_a_dialect_that_infers_nothing_cannot_be_made():
    class Bare(ir.Dialect):
        name = "bare"

    with pytest.raises(TypeError, match="abstract"):
        Bare()


def test_what_a_dialect_does_not_say_has_the_answer_of_plain_descriptions():
    dialect = NamedDialect()
    desc = ir.TensorDesc(ir.Shape((2,)), "float32")
    data = ir.ConstantData("float32", (), bytes(4))
    assert dialect.meta_of(desc) is dialect.describe(desc) is desc
    assert dialect.describe(3) is None
    assert dialect.constant(data) is dialect.constant_of(data) is dialect.constant_data(data)
    assert dialect.constant_data("text") is None
    assert dialect.same_layout(desc, None)
    assert dialect.detached() is dialect.as_size(desc) is None
    assert str(dialect.size_named("s0")) == "s0"


def test_host_arguments_are_the_same_when_their_types_agree_too():
    same = NamedDialect().same
    assert same(2, 2)
    assert same(math.nan, math.nan)
    assert not same(2, 2.0)
    assert not same(2, 3)


def test_whether_a_node_commutes_or_draws_is_what_its_operator_says():
    graph = ir.Graph("g", NamedDialect())
    x = graph.add_input()
    operator = ir.Operator("t::noise", random=True, commutes=True)
    noise = graph.insert_call(operator, (x,))
    plain = graph.insert("t::relu", (x,))
    dialect = NamedDialect()
    assert (dialect.commutes(noise), dialect.draws_random(noise)) == (True, True)
    assert (dialect.commutes(plain), dialect.draws_random(plain)) == (False, False)
    assert dialect.supports(plain) == (True, "")
    assert dialect.can_fold(plain)
    assert not dialect.is_settled(plain.output.meta)
    assert not dialect.reads_strides(plain)
    assert dialect.laid_out_as(x, None, plain) is None


def test_inference_leaves_out_what_is_settled_and_asks_about_a_shared_description_once():
    asked = []

    class Settling(NamedDialect):
        def is_settled(self, meta):
            asked.append(meta)
            return meta == "settled"

    graph = ir.Graph("g", Settling())
    x = graph.add_input(meta="settled")
    nodes = [graph.insert("t::relu", (x,)) for _ in range(4)]
    for node, meta in zip(nodes, ("settled", "settled", "open", None), strict=True):
        graph.set_meta(node.output, meta)
    assert graph.core.unsettled(graph.dialect.is_settled) == (*nodes[2:], graph.output_node)
    assert asked == ["settled", "open"]
