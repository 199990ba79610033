"""Control edges in what is rewritten, and in what replaces it."""

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.oracles.matching import compare_passes_with_oracle
from tests.unit.passes import small
from tests.unit.passes.matching.test_control_edges import EDGES, STEPS, grown
from tests.unit.passes.native_libraries import LIBRARIES, build

from bringup import compiler, ir, passes
from bringup.errors import PassError


def in_order(graph):
    """Every node stands behind what it reads and waits for."""
    return all(
        source.is_before(node)
        for node in graph.nodes
        for source in (*node.control_inputs, *(value.node for value in node.inputs))
    )


def named(graph):
    """The control edges of a graph as pairs of names."""
    return sorted((s.name, node.name) for node in graph.nodes for s in node.control_inputs)


def around():
    """before -> [a -> b] -> after by control edges, where b reads a."""
    builder = ir.GraphBuilder("g")
    x, y = builder.create_inputs(2)
    before = builder.op("demo::before", y)
    with builder.control_dependency_scope(before):
        inner = builder.op("demo::a", x)
    outer = builder.op("demo::b", inner)
    after = builder.op("demo::after", y)
    builder.add_control_dependency(after, outer)
    return builder.build_and_reset([builder.op("demo::end", outer), after, before])


def rewriting(make_replacement, wanted=("demo::a", "demo::b")):
    class P(passes.PatternFusionPass):
        @passes.pattern
        def found(self, inputs):
            value = inputs[0]
            for name in wanted:
                value = inputs[0].builder.op(name, value)
            return value

        def replacement(self, inputs):
            return make_replacement(inputs[0].builder, inputs[0])

    return P


@pytest.fixture
def compared(monkeypatch):
    compare_passes_with_oracle(monkeypatch)


@pytest.mark.usefixtures("compared")
def test_edges_that_enter_and_leave_are_kept_at_the_replacement():
    graph = around()
    small.run_one(rewriting(lambda b, x: b.op("demo::d", b.op("demo::c", x))), graph)
    assert named(graph) == [("before", "c"), ("d", "after")]
    assert in_order(graph)


@pytest.mark.usefixtures("compared")
def test_every_new_node_runs_between_what_the_old_ones_ran_between():
    """Two new nodes that read nothing of each other both wait, and both are waited for."""
    graph = around()
    small.run_one(
        rewriting(lambda b, x: b.op("demo::d", b.op("demo::c", x), b.op("demo::e", x))), graph
    )
    assert named(graph) == [("before", "c"), ("before", "e"), ("d", "after")]


@pytest.mark.usefixtures("compared")
def test_replacement_without_nodes_leaves_the_order_of_the_others():
    """What ran before a removed node runs before what ran after it."""
    graph = around()
    small.run_one(rewriting(lambda b, x: x), graph)
    assert small.types(graph) == ["before", "after", "end"]
    assert named(graph) == [("before", "after"), ("before", "end")]


@pytest.mark.usefixtures("compared")
def test_what_computes_the_value_that_is_passed_through_is_waited_for():
    builder = ir.GraphBuilder("g")
    x, y = builder.create_inputs(2)
    computed = builder.op("demo::computed", x)
    same = builder.op("demo::b", builder.op("demo::a", computed))
    after = builder.op("demo::after", y)
    builder.add_control_dependency(after, same)
    graph = builder.build_and_reset([same, after])
    small.run_one(rewriting(lambda b, x: x), graph)
    assert named(graph) == [("computed", "after")]


@pytest.mark.usefixtures("compared")
def test_edges_of_a_replacement_are_made():
    """From an input of it they lead from what computes the value, which here is a node or none."""

    def replacement(b, x):
        first, second = b.op("demo::c", x), b.op("demo::d", x)
        b.add_control_dependency(first, [second, x])
        return b.op("demo::e", first, second)

    builder = ir.GraphBuilder("g")
    (x,) = builder.create_inputs(1)
    computed = builder.op("demo::b", builder.op("demo::a", builder.op("demo::computed", x)))
    graph = builder.build_and_reset([computed, builder.op("demo::b", builder.op("demo::a", x))])
    result = small.run_one(rewriting(replacement), graph)
    assert result.matches == 2
    assert named(graph) == [("computed", "c"), ("d", "c"), ("d_1", "c_1")]
    assert in_order(graph)


@pytest.mark.usefixtures("compared")
def test_node_that_waits_for_the_first_matched_node_runs_after_the_whole_replacement():
    """The replacement stands in front of it, and what it needs is moved there."""
    builder = ir.GraphBuilder("g")
    x, y = builder.create_inputs(2)
    first = builder.op("demo::a", x)
    after = builder.op("demo::after", y)
    builder.add_control_dependency(after, first)
    needed = builder.op("demo::needed", y)
    graph = builder.build_and_reset([builder.op("demo::b", first, needed), after])

    class P(passes.PatternFusionPass):
        @passes.pattern
        def found(self, inputs):
            op = inputs[0].builder.op
            return op("demo::b", op("demo::a", inputs[0]), inputs[1])

        def replacement(self, inputs):
            return inputs[0].builder.op("demo::c", inputs[0], inputs[1])

    assert small.run_one(P, graph).matches == 1
    assert small.types(graph) == ["needed", "c", "after"]
    assert named(graph) == [("c", "after")]


def test_decomposed_node_hands_its_edges_on():
    graph = around()

    @passes.register_decompose_pass(name="D", stage=small.STAGE, op_types=["demo::b"])
    class D(passes.DecomposePass):
        def replacement(self, node):
            builder = ir.GraphBuilder()
            (x,) = builder.create_inputs(1)
            return builder.op("demo::d", builder.op("demo::c", x))

    assert small.run(graph)["D"].matches == 1
    assert named(graph) == [("before", "a"), ("d", "after")]


def test_part_that_was_picked_by_hand_keeps_its_edges():
    graph = around()
    first, second = graph.find("demo::a")[0], graph.find("demo::b")[0]
    boundary = passes.SubgraphBoundary()
    boundary.add_input(0, passes.SubgraphInput([(first, 0)]))
    boundary.add_output(0, passes.SubgraphOutput(second))
    builder = ir.GraphBuilder()
    (x,) = builder.create_inputs(1)
    passes.SubgraphRewriter.replace(boundary, builder.build_and_reset(builder.op("demo::c", x)))
    assert named(graph) == [("before", "c"), ("c", "after")]


def test_part_that_a_node_waits_for_and_precedes_cannot_be_replaced():
    builder = ir.GraphBuilder("g")
    x, y = builder.create_inputs(2)
    first = builder.op("demo::a", x)
    between = builder.op("demo::between", y)
    builder.add_control_dependency(between, first)
    with builder.control_dependency_scope(between):
        second = builder.op("demo::b", first)
    graph = builder.build_and_reset([second, between])
    nodes = [graph.find(f"demo::{name}")[0] for name in ("a", "b")]
    answer = passes.can_fuse(nodes)
    assert not answer
    assert "it would make a cycle: what it needs depends on 'between'" in answer.reason


def test_refused_replacement_leaves_the_edges_as_they_were():
    graph = around()
    before = str(graph)

    class P(passes.PatternFusionPass):
        found = rewriting(None).found

        def replacement(self, inputs):
            return [inputs[0].builder.op("demo::c", inputs[0])] * 2

    with pytest.raises(PassError, match="has 2 outputs, what it replaces has 1"):
        small.run_one(P, graph)
    assert str(graph) == before


def test_journal_tells_of_control_edges():
    graph = around()
    before, after = graph.find("demo::before")[0], graph.find("demo::after")[0]
    with graph.transaction() as journal:
        graph.add_control_edge(before, after)
        (edit,) = journal
    assert edit == ir.Control(after, graph.find("demo::b"), (*graph.find("demo::b"), before))


def test_graph_of_torch_has_no_control_edges(traced):
    """FX graphs have none: the pass is refused, and nothing is changed."""

    @passes.register_fusion_pass(name="P", stage=small.STAGE)
    class P(passes.PatternFusionPass):
        @passes.pattern
        def found(self, inputs):
            return inputs[0].builder.op("aten::relu", inputs[0])

        def replacement(self, inputs):
            builder = inputs[0].builder
            first = builder.op("aten::exp", inputs[0])
            second = builder.op("aten::neg", inputs[0])
            builder.add_control_dependency(second, first)
            return builder.op("aten::add", first, second)

    module = traced(lambda x: torch.relu(x), torch.ones(2))
    code = module.code
    with pytest.raises(PassError, match="was given a control edge, an attribute or a subgraph"):
        compiler.apply_passes(module)
    assert module.code == code


# Whatever the graph, the order of what stays is kept


def reached(graph):
    """By name, the operators that every node runs after, by reading or by a control edge."""
    found = {}
    for node in graph.nodes:
        sources = {*node.control_inputs, *(value.node for value in node.inputs)}
        own = {source.name for source in sources if source.op_type != ir.INPUT}
        found[node.name] = own.union(*(found[source.name] for source in sources))
    return found


def unary(kinds):
    def found(self, inputs):
        value = inputs[0]
        for kind in kinds:
            value = value.builder.op(f"t::{kind}", value)
        return value

    return found


def pair(self, inputs):
    op = inputs[0].builder.op
    return op("t::relu", inputs[0]), op("t::exp", inputs[0])


def linked(self, inputs):
    builder = inputs[0].builder
    first = builder.op("t::relu", inputs[0])
    with builder.control_dependency_scope(first):
        return first, builder.op("t::exp", inputs[1])


def fused(count, outputs):
    def replacement(self, inputs):
        values = [inputs[index] for index in range(count)]
        return inputs[0].builder.op(f"t::fused{outputs}", *values, outputs=outputs)

    return replacement


def parallel(self, inputs):
    builder = inputs[0].builder
    return builder.op("t::neg", inputs[0]), builder.op("t::abs", inputs[0])


def passed(self, inputs):
    return inputs[0]


REWRITES = [
    (unary(["relu", "exp"]), fused(1, 1)),
    (unary(["relu"]), passed),
    (unary(["exp", "relu"]), passed),
    (pair, fused(1, 2)),
    (pair, parallel),
    (linked, fused(2, 2)),
]


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=STEPS,
    edges=EDGES,
    results=st.lists(st.integers(0, 9), min_size=1, max_size=3),
    rewrite=st.sampled_from(REWRITES),
)
@example(  # the second relu runs between the two that the pattern finds: no order is left
    steps=[("relu", 1, 0), ("relu", 2, 0), ("relu", 0, 0), ("exp", 1, 0)],
    edges=[(0, 2), (2, 3)],
    results=[0, 2],
    rewrite=REWRITES[3],
)
def test_what_stays_runs_after_all_that_it_ran_after(steps, edges, results, rewrite):
    """Edges that cross the border of a match are never lost, and the graph can run."""
    graph = grown("graph", steps, edges, results)
    for node in reversed(graph.nodes[:-1]):  # nothing dead, which would go by itself
        if node.op_type.startswith("t::") and not node.users and not node.control_users:
            graph.erase(node)
    before = reached(graph)
    passes.clear_registered_passes()
    found, replacement = rewrite
    body = {"found": passes.pattern(found), "replacement": replacement}
    cls = type("P", (passes.PatternFusionPass,), body)
    small.run_one(cls, graph)
    after = reached(graph)
    assert in_order(graph)
    for name in before.keys() & after.keys():
        assert (before[name] & after.keys()) <= after[name], str(graph)


# Passes of libraries


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A library with a pattern that has control edges, and with a pass that replaces by hand."""
    build(LIBRARIES / "ordered.cpp", tmp_path / "ordered.so")
    monkeypatch.setenv("BRINGUP_PASS_PATH", str(tmp_path))
    passes.load_pass_plugins()
    yield
    passes.unload_pass_plugins()


@pytest.mark.usefixtures("library")
def test_library_says_control_edges_in_patterns_and_replacements(monkeypatch):
    compare_passes_with_oracle(monkeypatch)
    builder = ir.GraphBuilder("g")
    x, y = builder.create_inputs(2)
    computed = builder.op("demo::computed", y)
    first, second = builder.op("demo::a", x), builder.op("demo::b", computed)
    builder.add_control_dependency(second, first)
    builder.add_control_dependency(first, computed)
    after = builder.op("demo::after", builder.op("demo::e", x))
    builder.add_control_dependency(after.value.node.inputs[0], first)
    joined = builder.op("demo::join", first, second)
    unlinked = builder.op("demo::join", builder.op("demo::a", x), builder.op("demo::b", y))
    graph = builder.build_and_reset([joined, after, unlinked])
    report = small.run(graph)
    assert report.matches == {"ByHand": 1, "Ordered": 1}
    assert str(report["Ordered"].near_misses[0]).endswith(
        "a control edge is missing (expected from 'a_1', got from none)"
    )
    assert named(graph) == [("c", "d"), ("computed", "c"), ("join_2", "f")]
    assert in_order(graph)
