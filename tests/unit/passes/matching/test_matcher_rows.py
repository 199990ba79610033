"""Which occurrences of a pattern are found, in which order, and what is refused."""

import pytest
from tests.unit.passes.plain import Build, candidates, data, desc, graph_of, matches, pattern_of

from bringup import ir, passes


def names(pattern, graph):
    return matches(pattern, graph)[0]


def test_single_node_is_found_at_every_site_in_graph_order():
    """One node with one input and one output, with its exact boundary."""
    graph = graph_of(lambda b, x: [x := b.relu(x) for _ in range(6)][-1])
    found = candidates(pattern_of(lambda b, x: b.relu(x)), graph)[0]
    order = ["relu", "relu_1", "relu_2", "relu_3", "relu_4", "relu_5"]
    assert [item.result.outputs[0].name for item in found] == order
    assert [item.result.inputs[0].name for item in found] == ["input_0", *order[:-1]]


def test_node_with_a_constant_input_is_found_at_both_sites():
    """A constant without known data in the pattern matches any constant."""

    def function(b, x):
        one, two = b.constant(data("int32", (), 1)), b.constant(data("int32", (), 2))
        return b.sub(x, one), b.sub(x, two), b.sub(x, x)

    pattern = pattern_of(lambda b, x: b.sub(x, b.constant()))
    assert names(pattern, graph_of(function)) == [["constant", "sub"], ["constant_1", "sub_1"]]


@pytest.mark.parametrize(("compared", "sites"), [(True, 0), (False, 1)])
def test_constant_of_another_value_is_refused_if_values_are_compared(compared, sites):
    """Constant value match on and off."""
    graph = graph_of(lambda b, x: b.sub(x, b.constant(data("int32", (), 1))))
    pattern = pattern_of(
        lambda b, x: b.sub(x, b.constant(data("int32", (), 2))), constant_values=compared
    )
    found, miss = matches(pattern, graph)
    assert len(found) == sites
    assert sites or miss.reason == "the elements of a constant differ"


@pytest.mark.parametrize(
    ("wanted", "found", "reason"),
    [
        (("int32", (), 1), ("int32", (), 1), ""),
        (("uint8", (), 7), ("uint8", (), 7), ""),
        (("int64", (2,), 1, 2), ("int64", (2,), 1, 2), ""),
        (("float32", (1, 2, 1), 1.5, 2.5), ("float32", (1, 2, 1), 1.5, 2.5), ""),
        (("int32", (), 1), ("int64", (), 1), "a constant has another form"),
        (("int32", (2,), 1, 2), ("int32", (1, 2), 1, 2), "a constant has another form"),
        (("int32", (2,), 1, 2), ("int32", (3,), 1, 2, 3), "a constant has another form"),
        (("float32", (), 1.0), ("float32", (), 1.5), "the elements of a constant differ"),
        (("float32", (), 1.0), None, "the data of a constant is not known"),
        (None, ("float32", (), 1.0), ""),
        (None, None, ""),
    ],
)
def test_constants_of_pattern_and_graph(wanted, found, reason):
    """Scalars and tensors, high rank, dtype, shape, size and value misses, missing payloads."""
    pattern = pattern_of(lambda b, x: b.sub(x, b.constant(wanted and data(*wanted))))
    graph = graph_of(lambda b, x: b.sub(x, b.constant(found and data(*found))))
    sites, miss = matches(pattern, graph)
    assert (bool(sites), "" if sites else miss.reason) == (not reason, reason)


def test_two_nodes_and_a_constant_are_found_at_the_one_right_site():
    def function(b, x):
        c = b.constant()
        return b.relu(b.sub(x, c)), b.exp(b.sub(x, c)), b.relu(b.sub(c, x))

    pattern = pattern_of(lambda b, x: b.relu(b.sub(x, b.constant())))
    assert names(pattern, graph_of(function)) == [["constant", "sub", "relu"]]


def test_three_nodes_with_one_input_and_two_outputs():
    def three(b, x):
        inner = b.norm(x)
        return b.exp(inner), b.abs(inner)

    graph = graph_of(lambda b, x: (*three(b, x), *three(b, b.relu(x))))
    assert names(pattern_of(three), graph) == [
        ["norm", "exp", "abs"],
        ["norm_1", "exp_1", "abs_1"],
    ]


def two_readers(b, x, y):
    return b.sub(b.exp(x), b.neg(y))


def test_input_with_two_readers_and_nodes_in_topological_order():
    graph = graph_of(lambda b, x: two_readers(b, x, x))
    assert names(pattern_of(lambda b, x: two_readers(b, x, x)), graph) == [["exp", "neg", "sub"]]


def test_readers_of_different_producers_are_refused():
    """One input is one value."""
    pattern = pattern_of(lambda b, x: two_readers(b, x, x))
    found, miss = matches(pattern, graph_of(two_readers, 2))
    assert found == []
    assert miss.reason == "input 'input_0' of the pattern is another value"
    assert (miss.expected, miss.got) == ("%input_0", "%input_1")


def test_same_operators_in_another_topology_are_refused():
    pattern = pattern_of(lambda b, x: b.sub(b.exp(b.neg(x)), x))
    assert names(pattern, graph_of(lambda b, x: b.sub(b.neg(b.exp(x)), x))) == []


def test_two_matchers_on_one_graph_are_independent():
    graph = graph_of(lambda b, x: b.relu(b.relu(x)))
    pattern = pattern_of(lambda b, x: b.relu(x))
    assert names(pattern, graph) == names(pattern, graph) == [["relu"], ["relu_1"]]


def test_list_inputs_and_several_outputs_match():
    """Operators of open arity, which GE refuses."""

    def both(b, x, y):
        left, right = b.split2(b.cat([x, y], 1))
        return b.sub(left, right)

    found = names(pattern_of(both, 2), graph_of(both, 2))
    assert found == [["cat", "split2", "sub"]]
    swapped = graph_of(lambda b, x, y: b.sub(*reversed(b.split2(b.cat([x, y], 1)))), 2)
    miss = matches(pattern_of(both, 2), swapped)[1]
    assert (miss.reason, miss.expected, miss.got) == (
        "another output of the node is read",
        "0",
        "1",
    )


def test_some_outputs_of_a_node_may_be_outputs_of_the_pattern():
    """The others must not be read outside."""

    def first(b, x):
        return b.split2(x)[0]

    graph = graph_of(lambda b, x: b.relu(b.split2(x)[0]))
    assert names(pattern_of(first), graph) == [["split2"]]
    found, miss = matches(pattern_of(first), graph_of(lambda b, x: b.split2(x)))
    assert found == []
    assert "its output 1 is used outside by 'output'" in miss.reason


@pytest.mark.parametrize(("compared", "sites"), [(True, 0), (False, 1)])
def test_host_argument_of_another_value_is_refused_if_they_are_compared(compared, sites):
    """Attribute match on and off; never confuses operators."""
    graph = graph_of(lambda b, x: b.exp(b.sum(x, 1, (1, 2), True)))
    pattern = pattern_of(lambda b, x: b.exp(b.sum(x, 2, (1,), True)), attributes=compared)
    found, miss = matches(pattern, graph)
    assert len(found) == sites
    assert sites or (miss.reason, miss.expected, miss.got) == ("an argument differs", "2", "1")
    other = pattern_of(lambda b, x: b.exp(b.mean(x, 2, (1,), True)), attributes=compared)
    assert names(other, graph) == []


def escaping(b, x):
    inner = b.exp(x)
    return b.neg(inner), inner


def test_inner_value_that_is_used_outside_drops_that_candidate_only():
    def function(b, x):
        left = b.exp(x)
        return b.neg(left), b.abs(left), b.neg(b.exp(x))

    found, miss = matches(pattern_of(lambda b, x: b.neg(b.exp(x))), graph_of(function))
    assert found == [["exp_1", "neg_1"]]
    assert "its output 0 is used outside by 'abs'" in miss.reason
    assert (miss.node, miss.matched, miss.size) == ("exp", 2, 2)


def test_escaping_value_that_is_declared_as_an_output_matches():
    graph = graph_of(lambda b, x: [*escaping(b, x), b.abs(x)])
    assert names(pattern_of(escaping), graph) == [["exp", "neg"]]


def test_outputs_whose_candidates_stand_in_reversed_order_are_all_found():
    """5 candidates of output 0, 4 of output 1, paired through what they share."""

    def function(b, x):
        inner = [b.norm(x) for _ in range(5)]
        first = [b.exp(value) for value in inner]
        second = [b.neg(value) for value in reversed(inner[1:])]
        return *first, *second

    def wanted(b, x):
        inner = b.norm(x)
        return b.exp(inner), b.neg(inner)

    found, miss = matches(pattern_of(wanted), graph_of(function))
    assert found == [
        ["norm_1", "exp_1", "neg_3"],
        ["norm_2", "exp_2", "neg_2"],
        ["norm_3", "exp_3", "neg_1"],
        ["norm_4", "exp_4", "neg"],
    ]
    assert (miss.reason, miss.expected) == ("no reader of this value fits", "t::neg")


def test_parts_that_share_nothing_are_refused():
    """No cartesian search."""
    pattern = pattern_of(lambda b, x, y: (b.exp(x), b.neg(y)), 2)
    miss = matches(pattern, graph_of(lambda b, x: (b.exp(x), b.neg(x))))[1]
    assert miss.reason == "the pattern falls into parts that share no value"


def test_second_reader_is_tried_when_the_first_cannot_be_taken_out():
    """The search goes on after the boundary was refused."""

    def function(b, x):
        first = b.norm(x)
        one = b.pool(x)
        other = b.pool(x)
        return b.exp(first), b.neg(one), b.abs(one), b.neg(other)

    def wanted(b, x):
        return b.exp(b.norm(x)), b.neg(b.pool(x))

    found, miss = matches(pattern_of(wanted), graph_of(function))
    assert found == [["norm", "pool_1", "exp", "neg_1"]]
    assert "used outside by 'abs'" in miss.reason


def test_input_matches_constants_and_one_output_of_a_node():
    """A wildcard binds anything; another output of the same node is another value."""
    pattern = pattern_of(lambda b, x: b.op(b.exp(x), x))
    assert names(pattern, graph_of(lambda b, x: b.op(b.exp(c := b.constant()), c)))

    def halves(b, x):
        left, right = b.split2(x)
        return b.op(b.exp(left), right)

    assert names(pattern, graph_of(halves)) == []


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (lambda b, x: b.neg(b.abs(x)), "another operator"),
        (lambda b, x: b.neg(b.exp(x, 1)), "the call has another form"),
        (lambda b: b.neg(b.exp(3)), "an argument differs"),
    ],
)
def test_node_of_another_kind_or_form_is_refused(wanted, reason):
    """Type, number of inputs, a host value where a tensor stands."""
    pattern = pattern_of(wanted, 0 if "differs" in reason else 1)
    assert matches(pattern, relu_chain())[1].reason == reason


def relu_chain():
    return graph_of(lambda b, x: b.neg(b.exp(x)))


def test_nodes_that_write_or_draw_random_numbers_are_refused():
    for kind in ("write", "random"):
        graph = graph_of(lambda b, x, k=kind: b.exp(getattr(b, k)(x)))
        miss = matches(pattern_of(lambda b, x, k=kind: b.exp(getattr(b, k)(x))), graph)[1]
        assert "writes memory or is random" in miss.reason


def test_match_across_a_write_of_what_it_reads_is_refused():
    def function(b, x):
        inner = b.exp(x)
        b.write(x)
        return b.sub(inner, x)

    miss = matches(pattern_of(lambda b, x: b.sub(b.exp(x), x)), graph_of(function))[1]
    assert miss.reason == "'write' writes what it reads between it and the replacement"


def test_cycle_check_looks_only_at_nodes_between_the_outputs():
    """An input that depends on an output is refused, a late unrelated one is moved."""

    def two(b, x, y):
        return b.exp(b.sub(x, y)), b.neg(b.div(x, y))

    def function(b, x, y):
        first = b.exp(b.sub(x, y))
        early = b.abs(first)
        late = b.tanh(y)
        return early, b.neg(b.div(x, y)), late

    (item,) = candidates(pattern_of(two, 2), graph_of(function, 2))[0]
    assert (item.before.name, item.hoist) == ("abs", ())

    def cyclic(b, x):
        first = b.exp(x)
        return b.op(first, b.abs(first)), first

    pattern = pattern_of(lambda b, x, y: (inner := b.exp(x), b.op(inner, y)), 2)
    miss = matches(pattern, graph_of(cyclic))[1]
    assert "it would make a cycle: what it needs depends on 'abs'" in miss.reason


def test_late_inputs_are_moved_in_front():
    def function(b, x, y):
        first = b.exp(x)
        early = b.abs(first)
        late = b.tanh(y)
        return early, b.op(first, late)

    pattern = pattern_of(lambda b, x, y: (inner := b.exp(x), b.op(inner, y)), 2)
    (item,) = candidates(pattern, graph_of(function, 2))[0]
    assert (item.before.name, [node.name for node in item.hoist]) == ("abs", ["tanh"])


def test_keyword_arguments_and_slices_are_compared_item_by_item():
    """For operations that have no schema."""
    operator = ir.Operator("python::index")

    def graph(stop, key):
        build = Build()
        (x,) = build.inputs(1)
        target = build.builder._graph
        node = target.insert_call(
            operator, (x.value, slice(0, stop, None)), {key: x.value}, output_count=1
        )
        target.set_outputs(node.output)
        return target

    pattern = passes.Pattern(graph(passes.any_value("stop"), "out"))
    (item,) = candidates(pattern, graph(4, "out"))[0]
    assert item.result["stop"] == 4
    assert matches(passes.Pattern(graph(3, "out")), graph(4, "out"))[1].got == "4"
    assert names(pattern, graph(4, "other")) == []


def test_captures_by_number_and_by_name():
    """Captures by order and name, out of range fails."""
    build = Build("pattern")
    (x,) = build.inputs(1)
    inner = build.exp(x)
    pattern = passes.Pattern(build.graph(build.neg(inner)))
    pattern.capture_tensor(inner, name="inner").capture_tensor(x)
    (item,) = candidates(pattern, relu_chain())[0]
    assert item.result["inner"].name == "exp"
    assert [item.result.get_captured_tensor(index).name for index in (0, 1)] == ["exp", "input_0"]
    with pytest.raises(IndexError, match="captures 2 tensors; there is no number 2"):
        item.result.get_captured_tensor(2)


def test_match_is_refused_by_dtype_before_its_operands_are_looked_at():
    """The first thing that is wrong is reported with what was expected and found."""
    build = Build()
    graph = build.graph(build.neg(build.exp(build.input(desc(2)))))
    pattern = pattern_of(lambda b, x: b.neg(b.exp(x).where(dtype="float16")))
    miss = matches(pattern, graph)[1]
    assert str(miss) == (
        "pattern: 1 of 2 nodes matched, at 'exp': the dtype of 'exp' differs "
        "(expected float16, got float32)"
    )
