"""Parts of graphs picked by hand: boundaries, replacing them, fusing, shapes of replacements."""

import dataclasses

import pytest
import torch
from tests.unit.passes.small import STAGE, chain, run, types

from bringup import compiler, ir, passes
from bringup.errors import ExpiredHandleError, PassError

X = torch.randn(4, 8)


def build(make, inputs=2):
    builder = ir.GraphBuilder("g")
    return builder.build_and_reset(make(builder.op, *builder.create_inputs(inputs)))


def diamond():
    """b(a(x)), c(a(x), y) -> d."""

    def make(op, x, y):
        first = op("demo::a", x)
        return op("demo::d", op("demo::b", first), op("demo::c", first, y))

    return build(make)


def node(graph, name):
    return graph.find(f"demo::{name}")[0]


def boundary(graph, inputs, outputs):
    """Inputs as lists of (name, index), outputs as (name, index)."""
    made = passes.SubgraphBoundary()
    for number, ports in enumerate(inputs):
        listed = [(node(graph, name), index) for name, index in ports]
        made.add_input(number, passes.SubgraphInput(listed))
    for number, (name, index) in enumerate(outputs):
        made.add_output(number, passes.SubgraphOutput(node(graph, name), index))
    return made


def replace(graph, made, replacement, **keywords):
    with graph.transaction("by hand"):
        return passes.SubgraphRewriter.replace(made, replacement, **keywords)


# Boundaries


def test_input_of_one_and_of_several_ports():
    graph = diamond()
    one = passes.SubgraphInput([(node(graph, "a"), 0)])
    several = passes.SubgraphInput().add_input(node(graph, "b"), 0).add_input(node(graph, "c"), 0)
    assert one.value is graph.inputs[0]
    assert several.value is node(graph, "a").output
    assert [(item.name, index) for item, index in several.ports] == [("b", 0), ("c", 0)]


@pytest.mark.parametrize(
    ("ports", "error", "text"),
    [
        ([("b", 0), ("c", 1)], ValueError, "one input of a boundary is one value: it is 'a'"),
        ([("b", 0), ("b", 0)], ValueError, "input 0 of 'b' is in this boundary input already"),
        ([("b", 1)], IndexError, "has 1 inputs; there is no number 1"),
        ([("b", -1)], IndexError, "there is no number -1"),
        ([("b", True)], TypeError, "must be a number, got True"),
    ],
)
def test_wrong_ports_are_refused(ports, error, text):
    """Different producers, duplicates and missing ports, also through the constructor."""
    graph = diamond()
    with pytest.raises(error, match=text):
        passes.SubgraphInput([(node(graph, name), index) for name, index in ports])


def test_output_is_set_once_and_must_exist():
    graph = diamond()
    output = passes.SubgraphOutput(node(graph, "d"))
    with pytest.raises(ValueError, match="this boundary output is 'd' already"):
        output.set_output(node(graph, "a"), 0)
    with pytest.raises(IndexError, match="has 1 outputs; there is no number 1"):
        passes.SubgraphOutput(node(graph, "d"), 1)
    with pytest.raises(ValueError, match="was not set"):
        _ = passes.SubgraphOutput().value
    with pytest.raises(ValueError, match="has no port"):
        _ = passes.SubgraphInput().value


def test_number_of_a_boundary_is_taken_once_and_none_is_left_out():
    """A duplicate index is refused."""
    graph = diamond()
    port = passes.SubgraphInput([(node(graph, "a"), 0)])
    made = passes.SubgraphBoundary().add_input(1, port)
    with pytest.raises(ValueError, match="has an input number 1 already"):
        made.add_input(1, port)
    with pytest.raises(ValueError, match="has 1 inputs, and none of number 0"):
        _ = made.inputs
    with pytest.raises(TypeError, match="expected a SubgraphOutput"):
        made.add_output(0, port)


def test_nodes_of_a_boundary_come_in_graph_order():
    graph = diamond()
    made = boundary(graph, [[("a", 0)], [("c", 1)]], [("d", 0)])
    assert [item.name for item in made.nodes()] == ["a", "b", "c", "d"]


# The rewriter


def test_part_that_is_used_outside_is_refused_and_named():
    graph = diamond()
    made = boundary(graph, [[("a", 0)]], [("b", 0)])
    with pytest.raises(
        PassError, match="'a': its output 0 is used outside by 'c'; make it an output too"
    ):
        replace(graph, made, chain("new"))
    assert types(graph) == ["a", "b", "c", "d"]


def test_outputs_in_two_graphs_are_refused():
    graph, other = diamond(), diamond()
    made = boundary(graph, [], [("d", 0)])
    made.add_output(1, passes.SubgraphOutput(node(other, "d")))
    with pytest.raises(PassError, match="the boundary is in two graphs"):
        made.nodes()


def test_one_input_and_one_output_at_every_site():
    graph = chain("a", "b", "a")
    for site in graph.find("demo::a"):
        made = passes.SubgraphBoundary().add_input(0, passes.SubgraphInput([(site, 0)]))
        replace(graph, made.add_output(0, passes.SubgraphOutput(site)), chain("new"))
    assert types(graph) == ["new", "b", "new"]


def test_constant_of_the_replacement_is_kept():
    """N to M with a constant, whose payload comes along."""
    inner = ir.Graph("with constant")
    value = inner.add_input()
    constant = inner.add_constant(7)
    inner.set_outputs(inner.insert("demo::new", (value, constant)).output)
    graph = chain("a", "b")
    replace(graph, boundary(graph, [[("a", 0)]], [("b", 0)]), inner)
    assert types(graph) == ["new"]
    assert graph.find(ir.CONSTANT)[0].payload == 7


def test_input_with_several_readers_and_two_outputs():
    graph = diamond()
    made = boundary(graph, [[("b", 0), ("c", 0)], [("c", 1)]], [("b", 0), ("c", 0)])

    def two(op, x, y):
        return [op("demo::p", x), op("demo::q", x, y)]

    made_nodes = replace(graph, made, build(two))
    assert types(graph) == ["a", "p", "q", "d"]
    assert [item.meta["rule"] for item in made_nodes] == ["by hand"] * 2
    assert made_nodes[0].meta["replaces"] == ("b", "c")


def test_producer_keeps_its_reader_outside_of_the_boundary():
    graph = diamond()
    replace(graph, boundary(graph, [[("b", 0)]], [("b", 0)]), chain("new"))
    assert {user.name for user in node(graph, "a").users} == {"new", "c"}


def test_output_may_be_an_input_of_the_replacement():
    """Wired straight through, nothing is left of the part."""
    graph = chain("a", "b", "c")
    builder = ir.GraphBuilder()
    (x,) = builder.create_inputs(1)
    replace(graph, boundary(graph, [[("b", 0)]], [("b", 0)]), builder.build_and_reset(x))
    assert types(graph) == ["a", "c"]


def in_pass(work, on=None):
    """Run `work(graph, context)` as a pass over a graph."""
    graph = on or chain("a", "b")
    passes.register_custom_pass(name="Hand", stage=STAGE)(work)
    return graph, run(graph)["Hand"]


def test_replacing_with_a_context_is_reported():
    seen = []

    def work(graph, context):
        made = boundary(graph, [[("a", 0)]], [("b", 0)])
        passes.SubgraphRewriter.replace(made, chain("new"), context=context)

    with passes.subscribe(seen.append):
        graph, result = in_pass(work)
    assert (result.matches, types(graph)) == (1, ["new"])
    (replaced,) = [item for item in seen if item.kind is passes.EventKind.REPLACED]
    assert replaced.details["nodes"] == ["a", "b"]
    assert replaced.details["new_nodes"] == ["new"]


def test_replacing_with_a_context_is_refused_by_can_fuse():
    """The reason is also the context's message."""

    def work(graph, context):
        node(graph, "a").set_attr("stream_label", "left")
        node(graph, "b").set_attr("stream_label", "right")
        made = boundary(graph, [[("a", 0)]], [("b", 0)])
        try:
            passes.SubgraphRewriter.replace(made, chain("new"), context=context)
        finally:
            messages.append(context.get_error_message())

    messages = []
    with pytest.raises(PassError, match="the nodes have different stream_labels: 'left'"):
        in_pass(work)
    assert "cannot be fused" in messages[0]


def test_replacing_with_a_context_without_a_name_is_refused():
    def work(graph, context):
        context.set_pass_name("")
        made = boundary(graph, [[("a", 0)]], [("b", 0)])
        passes.SubgraphRewriter.replace(made, chain("new"), context=context)

    with pytest.raises(PassError, match="cannot be reported without the name of the pass"):
        in_pass(work)


def test_replacement_with_a_cycle_is_refused():
    graph = chain("a", "b")
    replacement = ir.Graph("loop", compiler.AtenDialect())
    value = replacement.add_input()
    first = replacement.insert("aten::relu", (value,))
    second = replacement.insert("aten::exp", (first.output,))
    replacement.set_argument(first, "self", second.output)
    replacement.set_outputs(second.output)
    with pytest.raises(PassError, match="cannot be ordered"):
        replace(graph, boundary(graph, [[("a", 0)]], [("b", 0)]), replacement)
    assert types(graph) == ["a", "b"]


def test_numbers_of_inputs_and_outputs_must_agree():
    graph = chain("a", "b")
    made = boundary(graph, [[("a", 0)]], [("b", 0)])
    with pytest.raises(PassError, match="has 2 inputs, the boundary has 1"):
        replace(graph, made, build(lambda op, x, y: op("demo::new", x, y)))
    with pytest.raises(PassError, match="has 2 outputs, what it replaces has 1"):
        replace(graph, made, build(lambda op, x: [op("demo::p", x), op("demo::q", x)], 1))


def test_part_that_reads_an_undeclared_graph_input_is_refused():
    graph = diamond()
    made = boundary(graph, [[("a", 0)]], [("d", 0)])
    with pytest.raises(PassError, match="an input of the graph, which is not among the inputs"):
        made.nodes()


def test_replacement_that_would_make_a_cycle_is_refused():
    """A plain replace checks for cycles too (GE does so only with a context)."""

    def make(op, x):
        first = op("demo::a", x)
        return op("demo::c", op("demo::b", first), first)

    graph = build(make, 1)
    made = boundary(graph, [[("a", 0)], [("c", 0)]], [("a", 0), ("c", 0)])
    with pytest.raises(PassError, match="would make a cycle"):
        replace(graph, made, build(lambda op, x, y: [op("demo::p", x), op("demo::q", y)]))


# can_fuse


def test_can_fuse_takes_a_generator_and_its_answer_is_frozen():
    answer = passes.can_fuse(item for item in chain("a", "b").nodes if item.inputs and item.outputs)
    assert (answer.ok, answer.reason, bool(answer)) == (True, "", True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        answer.ok = False


def test_can_fuse_refuses_an_empty_set():
    assert passes.can_fuse([]) == passes.FuseCheckResult(False, "there are no nodes")


@pytest.mark.parametrize("label", ["stream_label", "scope", "core_num", "deterministic"])
def test_can_fuse_refuses_conflicting_labels_and_names_both(label):
    graph = chain("a", "b", "c")
    node(graph, "a").set_attr(label, "one")
    assert passes.can_fuse([node(graph, "a"), node(graph, "b")])
    node(graph, "b").set_attr(label, "other")
    answer = passes.can_fuse([node(graph, "a"), node(graph, "b")])
    assert answer.reason == f"the nodes have different {label}s: 'one' (a), 'other' (b)"


def test_can_fuse_refuses_nodes_of_two_graphs():
    first, other = chain("a"), chain("a")
    other.name = "h"
    answer = passes.can_fuse([node(first, "a"), node(other, "a")])
    assert answer.reason == "'a' is a node of graph 'g', 'a' of 'h'"


def test_can_fuse_refuses_a_cycle_and_what_is_no_node():
    """A node between the two would be both before and after."""
    graph = chain("a", "b", "c")
    answer = passes.can_fuse([node(graph, "a"), node(graph, "c")])
    assert "it would make a cycle: what it needs depends on 'b'" in answer.reason
    assert "is an input or the result" in passes.can_fuse([graph.output_node]).reason
    with pytest.raises(TypeError, match=r"expected an ir\.Node, got 3"):
        passes.can_fuse([3])


def test_report_fuse_stamps_rule_and_origin_and_counts():
    def work(graph, context):
        old = [node(graph, "a"), node(graph, "b")]
        old[0].meta["stack_trace"] = "line 3"
        new = graph.inserting_before(old[0]).op("demo::new", graph.inputs[0])
        context.set_pass_name("Renamed")
        passes.report_fuse(old, [new.value.node], context)
        graph.replace_all_uses(old[1].output, new)
        graph.erase_dead(old[1])

    graph, result = in_pass(work)
    assert result.matches == 1
    meta = node(graph, "new").meta
    assert (meta["rule"], meta["replaces"], meta["stack_trace"]) == (
        "Renamed",
        ("a", "b"),
        "line 3",
    )


# infer_shape, and node support


def traced_linear():
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(lambda x, w: torch.relu(x @ w), tracing_mode="fake")(X, torch.randn(8, 3))


def replacement_graph():
    builder = ir.GraphBuilder("new")
    x, w = builder.create_inputs(2)
    return builder.build_and_reset(builder.op("aten::neg", builder.op("aten::mm", x, w)))


@pytest.mark.parametrize("source", ["node", "boundary", "match"])
def test_shapes_of_a_replacement_come_from_its_source(source):
    """In place, from a node, a boundary or a match; returns nothing."""
    seen = []

    def look(graph, where):
        new = replacement_graph()
        assert passes.infer_shape(new, where) is None
        seen.extend(str(value.desc) for value in (*new.inputs, *new.outputs))

    if source == "match":

        @passes.register_fusion_pass(name="P", stage=STAGE)
        class Look(passes.PatternFusionPass):
            @passes.pattern
            def found(self, inputs):
                return inputs[0].builder.op("aten::mm", inputs[0], inputs[1])

            def meet_requirements(self, match_result):
                look(None, match_result)
                return False
    else:

        @passes.register_custom_pass(name="P", stage=STAGE)
        def work(graph, context):
            (product,) = graph.find("aten::mm")
            where = passes.SubgraphBoundary()
            where.add_input(0, passes.SubgraphInput([(product, 0)]))
            where.add_input(1, passes.SubgraphInput([(product, 1)]))
            look(graph, product if source == "node" else where)

    compiler.apply_passes(traced_linear())
    assert seen == ["float32[4, 8]", "float32[8, 3]", "float32[4, 3]"]


def test_a_replacement_made_before_the_pass_is_bound_to_its_sources_dialect():
    new = replacement_graph()
    assert not new.is_bound

    @passes.register_custom_pass(name="P", stage=STAGE)
    def work(graph, context):
        passes.infer_shape(new, graph.find("aten::mm")[0])

    compiler.apply_passes(traced_linear())
    assert str(new.outputs[0].desc) == "float32[4, 3]"


def test_infer_shape_without_inputs_needs_a_dialect_of_the_replacement():
    builder = ir.GraphBuilder("one")
    one = builder.build_and_reset(builder.op("aten::neg", builder.create_constant(1.0)))
    source = one.outputs[0].node.inputs[0].node
    with pytest.raises(PassError, match="cannot be inferred: it has no dialect; "):
        passes.infer_shape(one, source)


def test_infer_shape_refuses_other_kinds_and_leaves_the_replacement_alone():
    graph = chain("a")
    with pytest.raises(TypeError, match=r"infer_shape takes an ir\.Graph, got str"):
        passes.infer_shape("graph", node(graph, "a"))
    replacement = replacement_graph()
    before = str(replacement)
    with pytest.raises(TypeError, match=r"a MatchResult, an ir\.Node or a SubgraphBoundary"):
        passes.infer_shape(replacement, graph)
    assert str(replacement) == before


def test_infer_shape_refuses_an_empty_replacement_and_one_that_does_not_fit():
    graph = chain("a")
    with pytest.raises(RuntimeError, match="the replacement 'empty' is empty"):
        passes.infer_shape(ir.Graph("empty"), node(graph, "a"))
    with pytest.raises(PassError, match="has 2 inputs, its source has 1"):
        passes.infer_shape(replacement_graph(), node(graph, "a"))

    @passes.register_custom_pass(name="P", stage=STAGE)
    def work(graph, context):
        (product,) = graph.find("aten::mm")
        builder = ir.GraphBuilder("wrong")
        x, w = builder.create_inputs(2)
        wrong = builder.build_and_reset(builder.op("aten::mm", w, x))
        passes.infer_shape(wrong, product)

    with pytest.raises(PassError, match=r"the shapes of %mm = .* cannot be inferred"):
        compiler.apply_passes(traced_linear())


def test_node_support_is_asked_of_the_dialect():
    seen = []

    @passes.register_custom_pass(name="P", stage=STAGE)
    def work(graph, context):
        seen.append(passes.check_node_support(graph.find("aten::mm")[0]))

    compiler.apply_passes(traced_linear())
    assert seen == [(True, "")]
    with pytest.raises(PassError, match="has no dialect, so it is unknown whether 'a'"):
        passes.check_node_support(node(chain("a"), "a"))
    with pytest.raises(TypeError, match=r"expected an ir\.Node"):
        passes.check_node_support("a")


# Patterns and captures


def two_outputs():
    builder = ir.GraphBuilder("p")
    (x,) = builder.create_inputs(1)
    left, right = builder.op("demo::split", x, outputs=2)
    last = builder.op("demo::a", right)
    return builder.build_and_reset([left, last]), last


def test_capture_by_node_value_holder_and_io_in_order():
    """The holder works after its graph was built."""
    graph, last = two_outputs()
    split = node(graph, "split")
    pattern = passes.create_pattern(graph)
    pattern.capture_tensor(split, 1).capture_tensor(passes.NodeIo(split, 0)).capture_tensor(last)
    pattern.capture_tensor(split, 1)
    assert pattern.get_captured_tensors() == (
        passes.NodeIo(split, 1),
        passes.NodeIo(split, 0),
        passes.NodeIo(node(graph, "a"), 0),
        passes.NodeIo(split, 1),
    )


@pytest.mark.parametrize(
    ("index", "error", "text"),
    [
        (2, IndexError, "has 2 outputs; there is no number 2"),
        (-1, IndexError, "there is no number -1"),
        ("1", TypeError, "must be a number, got '1'"),
    ],
)
def test_capture_of_an_output_that_is_not_there_is_refused(index, error, text):
    graph, _ = two_outputs()
    with pytest.raises(error, match=text):
        passes.create_pattern(graph).capture_tensor(node(graph, "split"), index)


def test_released_pattern_is_gone():
    """Released once; any use afterwards is a RuntimeError."""
    graph, _ = two_outputs()
    pattern = passes.create_pattern(graph)
    assert pattern.is_valid()
    assert pattern.release() is graph
    assert not pattern.is_valid()
    for use in (
        pattern.release,
        pattern.get_captured_tensors,
        lambda: pattern.capture_tensor(node(graph, "a")),
    ):
        with pytest.raises(ExpiredHandleError, match="pattern 'p' was released"):
            use()


def test_captured_tensor_twice_keeps_both_numbers_and_others_are_out_of_range():
    """Capturing twice keeps both roles."""
    seen = []

    @passes.register_fusion_pass(name="P", stage=STAGE)
    class Look(passes.PatternFusionPass):
        def patterns(self):
            graph = chain("a")
            found = node(graph, "a")
            return passes.create_pattern(graph).capture_tensor(found).capture_tensor(found, 0)

        def meet_requirements(self, match_result):
            seen.extend(match_result.get_captured_tensor(index).name for index in (0, 1))
            with pytest.raises(IndexError, match="captures 2 tensors; there is no number 2"):
                match_result.get_captured_tensor(2)
            return False

    run(chain("a"))
    assert seen == ["a", "a"]


def test_part_that_reads_what_is_written_before_its_place_is_refused():
    """relu reads x before the write, and would read it after."""
    builder = ir.GraphBuilder("g", compiler.AtenDialect())
    x, y = builder.create_inputs(2)
    early = builder.op("aten::relu", x)
    written = builder.op("aten::add_", x, y)
    graph = builder.build_and_reset([builder.op("aten::exp", early), written])
    (relu,), (exp,) = graph.find("aten::relu"), graph.find("aten::exp")
    made = passes.SubgraphBoundary().add_input(0, passes.SubgraphInput([(relu, 0)]))
    made.add_output(0, passes.SubgraphOutput(exp))
    with pytest.raises(PassError, match="'add_' writes what it reads between it and the"):
        replace(graph, made, chain("new"))


def labelled_chain(*labels):
    """a(x), b(a), with the attribute `stream_label` where one is given, and its boundary."""
    graph = chain("a", "b")
    for name, label in zip("ab", labels, strict=True):
        if label is not None:
            node(graph, name).set_attr("stream_label", label)
    return graph, boundary(graph, [[("a", 0)]], [("b", 0)])


@pytest.mark.parametrize(
    ("labels", "kept"), [(("s1", "s1"), "s1"), (("s1", None), "s1"), ((None, None), None)]
)
def test_attributes_that_were_set_are_kept_by_what_takes_the_place(labels, kept):
    """They once went with the nodes, without a word."""
    graph, made = labelled_chain(*labels)
    first, second = replace(graph, made, chain("new", "newer"))
    for new in (first, second):
        assert new.has_attr("stream_label") == (kept is not None)
    if kept is not None:
        first.set_attr("stream_label", "s9")
        assert second.get_attr("stream_label") == kept


def test_an_attribute_of_the_replacement_counts_before_an_inherited_one():
    graph, made = labelled_chain("s1", "s1")
    replacement = chain("new")
    node(replacement, "new").set_attr("stream_label", "own")
    (new,) = replace(graph, made, replacement)
    new.set_attr("more", 1)
    assert (new.get_attr("stream_label"), new.get_attr("more")) == ("own", 1)
    assert not node(replacement, "new").has_attr("more")


def test_nodes_that_differ_in_an_attribute_are_not_replaced_by_one():
    graph, made = labelled_chain("s1", "s2")
    with pytest.raises(PassError, match="'a' and 'b' differ in their attribute 'stream_label', so"):
        replace(graph, made, chain("new"))
    assert types(graph) == ["a", "b"]
