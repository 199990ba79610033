"""Parts that may be absent, alternatives, lists, constants, and what `where` asks of a tensor."""

import pytest
from tests.unit.passes.plain import (
    Build,
    candidates,
    graph_of,
    matches,
    only,
    pattern_of,
)

from bringup import passes
from bringup.errors import PassError

# Optional parts


def cast_pattern():
    """relu of x, of which a cast may come first."""
    holders = {}

    def build(b, x):
        holders["cast"] = b.cast(x, passes.any_value("dtype"))
        return b.relu(passes.optional(holders["cast"], name="cast?"))

    return pattern_of(build), holders["cast"]


def test_optional_node_that_is_there_is_part_of_the_match():
    """An optional cast."""
    pattern, cast = cast_pattern()
    result = only(pattern, graph_of(lambda b, x: b.relu(b.cast(x, "half"))))
    assert [node.name for node in result.get_matched_nodes()] == ["cast", "relu"]
    assert result.has(cast)
    assert (result.chosen("cast?"), result["dtype"]) == (0, "half")
    assert result.inputs[0].name == "input_0"


def test_optional_node_that_is_absent_leaves_its_operand_in_its_place():
    """An optional cast."""
    pattern, cast = cast_pattern()
    result = only(pattern, graph_of(lambda b, x: b.relu(b.exp(x))))
    assert [node.name for node in result.get_matched_nodes()] == ["relu"]
    assert not result.has(cast)
    assert result.chosen("cast?") == 1
    assert result.inputs[0].name == "exp"
    with pytest.raises(KeyError, match="'cast' of pattern 'pattern' is absent in this match"):
        result.value(cast)
    with pytest.raises(KeyError, match="'dtype' in this match: it belongs to a part that is abs"):
        result["dtype"]


def bias_pattern():
    return pattern_of(lambda b, x, w, c: passes.optional(b.add(b.mm(x, w), c), name="bias"), 3)


def test_optional_last_node_is_preferred_wherever_it_stands():
    """A bias that may be there or not, as the output of the pattern."""

    def function(b, x, w, c):
        return b.relu(b.mm(x, w)), b.add(c, b.mm(x, w))

    result = matches(bias_pattern(), graph_of(function, 3))[0]
    assert result == [["mm_1", "add"], ["mm"], ["mm_1"]]  # the last: as nothing was rewritten


def test_input_of_an_absent_part_is_none():
    result = only(bias_pattern(), graph_of(lambda b, x, w: b.relu(b.mm(x, w)), 2))
    assert [value and value.name for value in result.inputs] == ["input_0", "input_1", None]
    assert result.chosen("bias") == 1


def test_optional_input_matches_none_and_a_value():
    pattern = pattern_of(lambda b, x, w, c: b.conv(x, w, passes.optional(c)), 3)
    with_bias = only(pattern, graph_of(lambda b, x, w, c: b.conv(x, w, c), 3))
    without = only(pattern, graph_of(lambda b, x, w: b.conv(x, w, None), 2))
    assert [value is not None for value in with_bias.inputs] == [True, True, True]
    assert [value is not None for value in without.inputs] == [True, True, False]
    assert matches(pattern, graph_of(lambda b, x, w: b.conv(x, w, 1), 2))[0] == []


def test_optional_used_twice_is_absent_or_present_in_both_places():
    def build(b, x):
        maybe = passes.optional(b.cast(x))
        return b.sub(b.relu(maybe), maybe)

    def function(b, x):
        cast = b.cast(x)
        return b.sub(b.relu(cast), cast), b.sub(b.relu(cast), x), b.sub(b.relu(x), x)

    found = matches(pattern_of(build), graph_of(function))[0]
    assert ["relu_2", "sub_2"] in found
    assert not any("sub_1" in names for names in found)


def test_optional_of_what_has_no_operand_needs_otherwise():
    build = Build()
    with pytest.raises(ValueError, match="t::zeros has no operand to stand in its place"):
        passes.optional(build.zeros(3))
    with pytest.raises(TypeError, match="optional takes a holder, got 3"):
        passes.optional(3)


OWN_INPUT = "the pattern returns its own input here: only what an operator computes can be replaced"


def test_pattern_that_may_return_its_input_is_found_where_it_does_not():
    def function(b, x):
        return b.neg(b.relu(x)), b.exp(x)

    maybe = pattern_of(lambda b, x: passes.optional(b.relu(x)))
    assert matches(maybe, graph_of(function))[0] == [["relu"]]

    def both(b, x):
        optional = passes.optional(b.relu(x))
        return b.exp(optional), optional

    found, miss = matches(pattern_of(both), graph_of(function))
    assert found == []
    assert miss.reason == OWN_INPUT


def test_pattern_that_returns_its_input_finds_nothing_and_says_so():
    found, miss = matches(pattern_of(lambda b, x: x), graph_of(lambda b, x: b.relu(x)))
    assert (found, miss.node, miss.reason) == ([], "", OWN_INPUT)
    found, miss = matches(pattern_of(lambda b, x: (b.relu(x), x)), graph_of(lambda b, x: b.relu(x)))
    assert (found, miss.node, miss.reason) == ([], "input_0", OWN_INPUT)


# Alternatives


def activation(b, x):
    return passes.one_of(b.gelu(x), b.relu(x), b.mul(x, b.sigmoid(x)), name="kind")


def test_each_alternative_is_found_and_named():
    """Either-or, dispatched by type."""
    pattern = pattern_of(lambda b, x: b.exp(activation(b, x)))

    def function(b, x):
        silu = b.mul(b.sigmoid(x), x)
        return b.exp(b.relu(x)), b.exp(b.gelu(x)), b.exp(silu), b.exp(b.tanh(x))

    found, miss = candidates(pattern, graph_of(function))
    assert [item.result.chosen("kind") for item in found] == [1, 0, 2]
    assert (miss.reason, miss.expected, miss.got) == (
        "none of the alternatives fits",
        "t::gelu or t::relu or t::mul",
        "t::tanh",
    )


def test_alternatives_as_the_output_are_tried_in_their_order():
    pattern = pattern_of(activation)
    graph = graph_of(lambda b, x: (b.relu(x), b.gelu(x), b.gelu(x)))
    assert matches(pattern, graph)[0] == [["gelu"], ["gelu_1"], ["relu"]]


def test_search_goes_back_to_another_alternative_when_a_later_operand_does_not_fit():
    """Backtracking over alternatives of one type."""

    def build(b, x, y):
        return b.sub(passes.one_of(b.add(x, y), b.add(y, x), name="order"), x)

    pattern = pattern_of(build, 2)
    graph = graph_of(lambda b, x, y: b.sub(b.add(x, y), y), 2)
    assert only(pattern, graph).chosen("order") == 0  # addition commutes: x is the graph's y

    def ordered(b, x, y):
        return b.div(passes.one_of(b.pow(x, y), b.pow(y, x), name="order"), x)

    graph = graph_of(lambda b, x, y: b.div(b.pow(x, y), y), 2)
    assert only(pattern_of(ordered, 2), graph).chosen("order") == 1


def test_alternatives_may_be_host_arguments():
    pattern = pattern_of(lambda b, x: b.sum(x, passes.one_of(b.size(x), -1, 1, name="dim")))
    graph = graph_of(lambda b, x: (b.sum(x, 1), b.sum(x, b.size(x)), b.sum(x, 2)))
    found, miss = candidates(pattern, graph)
    assert [item.result.chosen("dim") for item in found] == [2, 0]
    assert (miss.expected, miss.got) == ("t::size or -1 or 1", "2")


def test_second_output_may_be_an_alternative_that_is_found_through_a_shared_value():
    """Seeding through a part that is undecided."""

    def build(b, x):
        inner = b.norm(x)
        return b.exp(inner), b.neg(passes.one_of(b.relu(inner), inner, name="which"))

    def function(b, x):
        inner, other = b.norm(x), b.norm(b.tanh(x))
        return b.exp(inner), b.neg(b.relu(inner)), b.exp(other), b.neg(other)

    found = candidates(pattern_of(build), graph_of(function))[0]
    assert [item.result.chosen("which") for item in found] == [0, 1]


def test_one_of_needs_two_alternatives_and_a_holder():
    build = Build()
    (x,) = build.inputs(1)
    for wrong in ((x,), (1, 2)):
        with pytest.raises(ValueError, match="one_of takes two alternatives or more"):
            passes.one_of(*wrong)


# Lists


def test_list_of_any_length_is_captured():
    """Variadic inputs of cat."""
    pattern = pattern_of(lambda b: b.cat(passes.variadic("xs"), passes.any_value("dim")), 0)
    graph = graph_of(lambda b, x, y: (b.cat([x, y, x], 1), b.cat([], 0)), 2)
    found = candidates(pattern, graph)[0]
    named = [[value.name for value in item.result["xs"]] for item in found]
    assert named == [["input_0", "input_1", "input_0"], []]


def test_list_may_begin_and_end_with_what_is_given():
    def build(b, x, y):
        return b.cat([b.relu(x), passes.variadic("rest", at_least=1), y])

    def function(b, x, y):
        return b.cat([b.relu(x), x, y, x]), b.cat([b.relu(y), x]), b.cat([x])

    found, miss = candidates(pattern_of(build, 2), graph_of(function, 2))
    (item,) = found
    assert [value.name for value in item.result["rest"]] == ["input_0", "input_1"]
    assert (miss.reason, miss.got) == ("a list has another length", "0 values")


@pytest.mark.parametrize(("length", "fits"), [(1, False), (2, True), (3, True), (4, False)])
def test_length_of_a_list_is_bounded(length, fits):
    pattern = pattern_of(lambda b: b.cat(passes.variadic("xs", at_least=2, at_most=3)), 0)
    found, miss = matches(pattern, graph_of(lambda b, x: b.cat([x] * length)))
    assert bool(found) == fits
    assert fits or miss.got == f"{length} values"


def test_every_item_of_a_list_matches_a_pattern_of_its_own():
    """Relu before concat: every item is relu of something."""
    each = pattern_of(lambda b, x: b.relu(x))
    pattern = pattern_of(lambda b: b.cat(passes.variadic("xs", each=each)), 0)

    def function(b, x, y):
        shared = b.relu(y)
        return b.cat([b.relu(x), shared, shared]), b.cat([b.relu(x), b.tanh(y)])

    found, miss = candidates(pattern, graph_of(function, 2))
    (item,) = found
    assert [node.name for node in item.result.get_matched_nodes()] == ["relu", "relu_1", "cat"]
    assert [value.name for value in item.result["xs"]] == ["relu_1", "relu", "relu"]
    assert [one.inputs[0].name for one in item.result.each("xs")] == [
        "input_0",
        "input_1",
        "input_1",
    ]
    assert (miss.node, miss.expected, miss.got) == ("tanh", "t::relu", "t::tanh")


def test_item_that_is_used_elsewhere_is_refused():
    pattern = pattern_of(
        lambda b: b.cat(passes.variadic("xs", each=lambda inputs: relu(inputs[0]))), 0
    )

    def function(b, x, y):
        used = b.relu(x)
        return b.cat([used, b.relu(y)]), b.exp(used)

    found, miss = matches(pattern, graph_of(function, 2))
    assert found == []
    assert "used outside by 'exp'" in miss.reason


def relu(x):
    return x.builder.op("t::relu", x)


def test_names_hold_within_one_item_unless_the_pattern_around_has_them():
    def scaled(name):
        return lambda inputs: inputs[0].builder.op("t::scale", inputs[0], passes.any_value(name))

    def build(name):
        def function(b):
            return b.cat(passes.variadic("xs", each=scaled(name)), passes.any_value("dim"))

        return pattern_of(function, 0)

    graph = graph_of(lambda b, x: b.cat([b.scale(x, 1), b.scale(x, 2)], 2))
    items = only(build("factor"), graph).each("xs")
    assert [item["factor"] for item in items] == [1, 2]
    found, miss = matches(build("dim"), graph)
    assert found == []
    assert "any_value('dim') is another argument" in miss.reason


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: passes.variadic(""), TypeError, "must be a non-empty string"),
        (lambda: passes.variadic("x", at_least=-1), ValueError, "a number from 0 up, got -1"),
        (lambda: passes.variadic("x", at_least=2, at_most=1), ValueError, "at_most 1 is less"),
        (lambda: passes.variadic("x", each=3), TypeError, "must be a Pattern, an ir.Graph or"),
        (lambda: passes.constant("x"), TypeError, "expected a number, nested numbers"),
        (lambda: passes.constant([[1], 2]), ValueError, "differ in shape"),
        (lambda: passes.constant(1, atol=-1), ValueError, "atol must be a finite number"),
        (lambda: passes.constant(2**80), ValueError, "does not fit into 64 bits"),
        (lambda: passes.any_value(kind="number"), ValueError, "kind must be among bool, int"),
    ],
)
def test_piece_that_cannot_be_meant_is_refused_with_what_is_wrong(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_two_open_lists_in_one_list_are_refused():
    with pytest.raises(PassError, match="two lists of open length"):
        pattern_of(lambda b: b.cat([passes.variadic("a"), passes.variadic("b")]), 0)


def test_name_that_stands_for_two_kinds_of_things_is_refused():
    with pytest.raises(PassError, match="the name 'a' stands for a list of values and for an arg"):
        pattern_of(lambda b: b.cat(passes.variadic("a"), passes.any_value("a")), 0)


# Open arguments


@pytest.mark.parametrize(
    ("element", "fits"),
    [
        (passes.any_value(kind="int"), [2]),
        (passes.any_value(kind=("float", "none")), [2.5, None]),
        (passes.any_value(kind="bool"), [True]),
        (passes.any_value(kind="list"), [(1, 2)]),
        (passes.any_value(kind="str"), ["sum"]),
        (passes.any_value(among=(2, "sum", (1, 2))), [2, "sum", (1, 2)]),
        (passes.any_value(at_least=0, at_most=2), [2]),
        (passes.any_value(at_least=2.1), [2.5]),
        (passes.any_value(), [2, 2.5, None, True, (1, 2), "sum"]),
    ],
)
def test_open_argument_may_be_restricted(element, fits):
    """Attribute predicates."""
    pattern = pattern_of(lambda b, x: b.op(x, element))
    for argument in (2, 2.5, None, True, (1, 2), "sum"):
        found, miss = matches(pattern, graph_of(lambda b, x, a=argument: b.op(x, a)))
        assert bool(found) == any(type(argument) is type(one) and argument == one for one in fits)
        assert found or (miss.reason, miss.expected) == ("an argument differs", repr(element))


def test_only_a_tensor_is_of_kind_tensor():
    pattern = pattern_of(lambda b, x: b.op(x, passes.any_value("size", kind="tensor")))
    found = candidates(pattern, graph_of(lambda b, x, y: (b.op(x, y), b.op(x, 2)), 2))[0]
    assert [item.result["size"].name for item in found] == ["input_1"]
