"""Control edges: in patterns, in what is rewritten, and in what replaces it."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.passes.matching.test_native_matcher import assert_same
from tests.unit.passes.plain import Build, graph_of, matches, only, pattern_of

from bringup import passes
from bringup.errors import PassError

# Matching


def chain(linked):
    """relu(x) and exp(y), the second after the first if `linked`; both are returned."""

    def make(b, x, y):
        first, second = b.relu(x), b.exp(y)
        return (first, b.after(second, first)) if linked else (first, second)

    return make


def joined(b, x, y):
    """add(relu(x), exp(y)), where exp runs after relu."""
    first = b.relu(x)
    return b.add(first, b.after(b.exp(y), first))


def test_edge_of_a_pattern_must_be_in_the_graph():
    """GE refuses such a pattern; here its edge is compared."""
    found, _ = matches(pattern_of(joined, 2), graph_of(joined, 2))
    assert found == [["relu", "exp", "add"]]
    found, miss = matches(
        pattern_of(joined, 2), graph_of(lambda b, x, y: b.add(b.relu(x), b.exp(y)), 2)
    )
    assert found == []
    assert (miss.node, miss.reason) == ("exp", "a control edge is missing")
    assert (miss.expected, miss.got, miss.matched) == ("from 'relu'", "from none", 2)


def test_edge_in_the_other_direction_is_another_one():
    def backwards(b, x, y):
        second = b.exp(y)
        return b.add(b.after(b.relu(x), second), second)

    found, miss = matches(pattern_of(joined, 2), graph_of(backwards, 2))
    assert found == []
    assert (miss.node, miss.got) == ("exp", "from none")


def test_edge_decides_between_the_orders_of_operands():
    """Both operands look alike; only one order has the edge."""

    def wanted(b, x, y):
        first = b.relu(x)
        return b.add(first, b.after(b.relu(y), first))

    def swapped(b, x, y):
        first = b.relu(x)
        return b.add(b.after(b.relu(y), first), first)

    for made in (wanted, swapped):
        result = only(pattern_of(wanted, 2), graph_of(made, 2))
        assert [value.name for value in result.inputs] == ["input_0", "input_1"]


def test_edge_from_an_input_leads_from_what_computes_it():
    def after_input(b, x, y):
        return b.after(b.exp(y), x)

    pattern = pattern_of(lambda b, x, y: b.relu(b.add(after_input(b, x, y), x)), 2)
    graph = graph_of(lambda b, x, y: b.relu(b.add(after_input(b, b.neg(x), y), b.neg(y))), 2)
    found, miss = matches(pattern, graph)
    assert found == []
    assert (miss.node, miss.expected, miss.got) == ("exp", "from 'neg_1'", "from 'neg'")

    def right(b, x, y):
        computed = b.neg(x)
        return b.relu(b.add(after_input(b, computed, y), computed))

    assert matches(pattern, graph_of(right, 2))[0] == [["exp", "add", "relu"]]


def test_edge_leads_to_an_output_that_shares_no_value():
    """Several outputs: without the edge the parts would have nothing in common."""
    graph = graph_of(
        lambda b, x, y: (*chain(True)(b, x, y), *chain(True)(b, y, x), b.exp(x), b.relu(y)), 2
    )
    found, _ = matches(pattern_of(chain(True), 2), graph)
    assert found == [["relu", "exp"], ["relu_1", "exp_1"]]
    _, miss = matches(pattern_of(chain(False), 2), graph)
    assert miss.reason == "the pattern falls into parts that share no value"
    found, miss = matches(pattern_of(chain(True), 2), graph_of(chain(False), 2))
    assert (found, miss.node) == ([], "relu")
    assert miss.reason == "no control edge leads from it as the pattern has one"
    assert (miss.expected, miss.got) == ("t::exp", "none")


def test_edge_backwards_leads_to_an_output_too():
    """The first output is the one that waits."""

    def make(b, x, y):
        return tuple(reversed(chain(True)(b, x, y)))

    assert matches(pattern_of(make, 2), graph_of(make, 2))[0] == [["relu", "exp"]]
    _, miss = matches(pattern_of(make, 2), graph_of(chain(False), 2))
    assert miss.reason == "no control edge comes to it as the pattern has one"


def test_edges_of_items_of_a_list_are_compared():
    """Each item has its own."""

    def item(inputs):
        op = inputs[0].builder.op
        first = op("t::relu", inputs[0])
        with inputs[0].builder.control_dependency_scope(first):
            second = op("t::exp", inputs[0])
        return op("t::add", first, second)

    def listed(*linked):
        def make(b, x):
            items = []
            for is_linked in linked:
                first, second = b.relu(x), b.exp(x)
                if is_linked:
                    b.after(second, first)
                items.append(b.add(first, second))
            return b.cat(items, 0)

        return make

    pattern = pattern_of(lambda b: b.cat(passes.variadic("xs", each=item), 0), 0)
    assert len(matches(pattern, graph_of(listed(True, True)))[0]) == 1
    found, miss = matches(pattern, graph_of(listed(True, False)))
    assert found == []
    assert (miss.node, miss.expected, miss.got) == ("exp_1", "from 'relu_1'", "from none")


def test_edge_at_an_absent_part_asks_for_nothing():
    def wanted(b, x, y):
        first = b.relu(x)
        second = b.after(b.exp(y), first)
        return b.add(first, passes.optional(second))

    pattern = pattern_of(wanted, 2)
    assert matches(pattern, graph_of(joined, 2))[0] == [["relu", "exp", "add"]]
    plain = graph_of(lambda b, x, y: b.add(b.relu(x), y), 2)
    assert matches(pattern, plain)[0] == [["relu", "add"]]


def test_pattern_with_an_edge_at_alternatives_is_refused():
    def wanted(b, x, y):
        either = passes.one_of(b.relu(x), b.exp(x))
        return b.after(b.add(either, y), either)

    with pytest.raises(PassError, match=r"control edge at 'one_of', which stands for alternatives"):
        pattern_of(wanted, 2)


def test_pattern_whose_edges_make_a_cycle_is_refused():
    build = Build("pattern")
    (x,) = build.inputs(1)
    first = build.relu(x)
    second = build.exp(first)
    build.after(first, second)
    with pytest.raises(PassError, match="it would make a cycle: what it needs depends on"):
        build.graph(second)
    graph = graph_of(lambda b, x: b.exp(b.relu(x)))
    graph.add_control_edge(*(graph.find(f"t::{name}")[0] for name in ("exp", "relu")))
    with pytest.raises(PassError, match=r"pattern 'graph' cannot run: at 'relu' it would make"):
        passes.Pattern(graph)


def test_pattern_may_say_an_edge_against_the_order_in_which_it_was_built():
    def late(b, x, y):
        first, second = b.relu(x), b.exp(y)
        return b.add(b.after(first, second), second)

    graph = graph_of(lambda b, x, y: b.add(b.after(b.relu(x), s := b.exp(y)), s), 2)
    assert matches(pattern_of(late, 2), graph)[0] == [["exp", "relu", "add"]]


def test_edge_inside_of_a_match_that_the_pattern_lacks_is_refused():
    """What reads exp would no longer run after what relu waits for."""
    pattern = pattern_of(lambda b, x, y: b.add(b.relu(x), b.exp(y)), 2)
    found, miss = matches(pattern, graph_of(joined, 2))
    assert found == []
    assert miss.node == "exp"
    assert miss.reason == "it runs after 'relu' by a control edge that the pattern does not have"


def test_edge_that_says_no_more_than_what_is_read_is_no_obstacle():
    def linked(b, x):
        first = b.relu(x)
        return b.after(b.neg(b.exp(first)), first)

    pattern = pattern_of(lambda b, x: b.neg(b.exp(b.relu(x))))
    assert matches(pattern, graph_of(linked))[0] == [["relu", "exp", "neg"]]


def test_match_that_would_have_to_run_before_and_after_a_node_is_refused():
    """A cycle through control edges. relu -> between -> exp, by edges alone."""

    def circle(b, x, y):
        first = b.relu(x)
        between = b.after(b.neg(y), first)
        return b.add(first, b.after(b.exp(x), between)), between

    pattern = pattern_of(lambda b, x: b.add(b.relu(x), b.exp(x)))
    found, miss = matches(pattern, graph_of(circle, 2))
    assert found == []
    assert miss.reason.startswith("it would make a cycle: what it needs depends on 'neg'")


# Differential: many edges over few operators

STEPS = st.lists(
    st.tuples(
        st.sampled_from(("relu", "exp", "add", "add")), st.integers(0, 20), st.integers(0, 20)
    ),
    min_size=2,
    max_size=10,
)
EDGES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=8)


def grown(name, steps, edges, results):
    """Two inputs, a node a step, edges between nodes by number, in the order of the graph."""
    build = Build(name)
    inputs = build.inputs(2)
    made = []
    for kind, left, right in steps:
        values = [*inputs, *made]
        operands = [values[left % len(values)]]
        if kind == "add":
            operands.append(values[right % len(values)])
        made.append(getattr(build, kind)(*operands))
    for one, other in edges:
        first, last = sorted((one % len(made), other % len(made)))
        if first != last:
            build.after(made[last], made[first])
    if name == "graph":  # no result is an input, whatever is taken out
        return build.graph(*(build.end(made[-1 - index % len(made)]) for index in results))
    return build.graph(*{made[-1 - index % len(made)]: None for index in results})


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=STEPS,
    edges=EDGES,
    size=st.integers(2, 4),
    wanted_edges=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=2),
    outputs=st.lists(st.integers(0, 3), min_size=1, max_size=2, unique=True),
    results=st.lists(st.integers(0, 9), min_size=1, max_size=3),
    planted=st.booleans(),
)
def test_matches_and_near_misses_with_edges_are_those_of_the_reference(
    steps, edges, size, wanted_edges, outputs, results, planted
):
    """The pattern is the beginning of the graph or, unless planted, of its reverse."""
    source = steps if planted else steps[::-1]
    wanted = grown("pattern", source[:size], wanted_edges, outputs)
    wanted.erase_dead(*wanted.nodes)
    if planted:
        edges = [*edges, *((a % size, b % size) for a, b in wanted_edges)]
    graph = grown("graph", steps, edges, results)
    try:
        pattern = passes.Pattern(wanted)
    except PassError:
        return
    assert_same(pattern, graph)
