"""The native matcher gives the matches, their order and the near misses of its oracle."""

import gc
import threading
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.oracles.matching import Matcher
from tests.sweeps.support import seed, sized
from tests.unit.passes.plain import (
    Build,
    PlainDialect,
    answers,
    candidates,
    data,
    desc,
    facts,
    graph_of,
    pattern_of,
)

from bringup import ir, passes
from bringup.errors import PassError
from bringup.passes.matching.native_matcher import NativeMatcher
from bringup.passes.matching.program import program_of

# A step calls an operator on values made before; in a pattern it may also make a piece that only
# patterns have. The numbers choose operands and variants.
OPERATORS = (
    "relu",
    "exp",
    "add",
    "mul",
    "sub",
    "split2",
    "cat",
    "scale",
    "constant",
    "control",
    "write",
)
PIECES = ("optional", "one_of", "variadic", "each", "any", "number", "where")
NUMBERS = st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 7))
STEP = st.tuples(st.sampled_from(OPERATORS), NUMBERS)
PATTERN_STEP = st.tuples(st.sampled_from(OPERATORS[:-1] + PIECES), NUMBERS)
DESCRIPTIONS = (None, desc(2, 3), desc(2, "s0"), desc("s0", 3, dtype="float16"), desc(4))
METAS = st.lists(st.sampled_from(DESCRIPTIONS), min_size=1, max_size=3)
CONSTANTS = (None, data("float32", (), 1.0), data("float32", (2,), 1.0, 1.0), data("int64", (), 1))
SHAPES = ((2, 3), ("N", 3), ("N", "N"), (..., "M"), (None, "M"), ("M",))


class Steps:
    """Builds a graph or pattern from steps."""

    def __init__(self, metas):
        self.build = Build("graph")
        self.values = [self.build.input(meta) for meta in metas]
        self.made = []

    def run(self, steps):
        for kind, numbers in steps:
            made = getattr(self, f"make_{kind}", None)
            result = made(*numbers) if made else self.call(kind, *numbers)
            if result is not None:
                self.made.append(result)
                self.values.append(result)

    def at(self, index):
        return self.values[index % len(self.values)]

    def call(self, kind, left, right, variant):
        operands = [self.at(left)]
        if kind in ("add", "mul", "sub"):
            operands.append(self.at(right))
        elif kind == "scale":
            operands.append((1, 2, 1.0, None)[variant % 4])
        elif kind == "cat":
            operands = [[self.at(left + i) for i in range(variant % 4)], right % 2]
        result = getattr(self.build, kind)(*operands)
        return result[variant % 2] if isinstance(result, tuple) else result

    def make_constant(self, left, right, variant):
        return self.build.constant(CONSTANTS[variant % 4])

    def make_control(self, left, right, variant):
        """A control edge between values made before, in their order, where there can be one."""
        first, last = sorted((left % len(self.values), right % len(self.values)))
        try:
            self.build.after(self.values[last], self.values[first])
        except ValueError:  # to an input or from a constant
            return

    def make_optional(self, left, right, variant):
        value = self.at(left)
        if value.value.node.inputs or value.value.node.op_type == ir.INPUT:
            return passes.optional(value)
        return None

    def make_one_of(self, left, right, variant):
        return passes.one_of(self.at(left), (self.at(right), 1, None)[variant % 3])

    def make_variadic(self, left, right, variant):
        whole = passes.variadic("xs", at_least=right % 2)
        listed = (whole, [self.at(left), whole], [whole, self.at(left)])[variant % 3]
        return self.build.cat(listed, right % 2)

    def make_each(self, left, right, variant):
        kind = ("relu", "exp")[variant % 2]
        each = passes.variadic(
            "es", each=lambda inputs: inputs[0].builder.op(f"t::{kind}", inputs[0])
        )
        return self.build.cat(each if variant < 4 else [self.at(left), each], right % 2)

    def make_any(self, left, right, variant):
        element = (
            passes.any_value("a"),
            passes.any_value("a", kind="int"),
            passes.any_value(among=(1, None)),
            passes.any_value("b", at_least=1.5),
        )[right % 4]
        return self.build.scale(self.at(left), element)

    def make_number(self, left, right, variant):
        element = (
            passes.constant(),
            passes.constant(1.0, name="c"),
            passes.constant([1.0, 1.0]),
            passes.constant(0.5, atol=0.6),
        )[right % 4]
        kind = ("add", "sub", "scale")[variant % 3]
        return getattr(self.build, kind)(self.at(left), element)

    def make_where(self, left, right, variant):
        stated = (
            {"rank": 2},
            {"dtype": ("float32", "float64")},
            {"device": "cpu"},
            {"shape": SHAPES[right % len(SHAPES)]},
        )[variant % 4]
        try:
            self.at(left).where(**stated)
        except ValueError:  # it says otherwise already
            return
        return

    def graph(self, results):
        chosen = [self.at(index) for index in results]
        return self.build.graph(*chosen)


def pattern_from(steps, outputs, options):
    """A pattern; None when the steps make none."""
    made = Steps([None, None])
    made.run(steps)
    if not made.made:
        return None
    results = [made.made[-1 - index % len(made.made)] for index in outputs]
    graph = made.build.graph(*results)
    _drop_unused(graph)
    try:
        return passes.Pattern(graph, "p", constant_values=options[0], attributes=options[1])
    except PassError:
        return None


def _drop_unused(graph):
    for node in reversed(graph.nodes[:-1]):
        if not node.users:
            for user in node.control_users:
                graph.remove_control_edge(node, user)
            graph.erase(node)


def assert_same(pattern, graph):
    """Both matchers on the graph as it is; the candidates found."""
    found, miss = answers(NativeMatcher, pattern, graph)
    expected, near_miss = answers(Matcher, pattern, graph)
    assert list(map(facts, found)) == list(map(facts, expected))
    assert miss == near_miss
    return found


def edit(graph, number):
    """Something a pass might do."""
    nodes = [node for node in graph.nodes if node.op_type.startswith("t::")]
    if not nodes:
        return
    node = nodes[number % len(nodes)]
    if number % 3 == 0 and node.inputs and node.outputs:
        graph.exchange_uses(node.output, node.inputs[0])  # whatever writes the input later
        graph.erase_dead(node)
    elif number % 3 == 1:
        read = node.inputs[0] if node.inputs else graph.inputs[0]
        graph.inserting_before(node).op("t::relu", read)
    elif node.op_type in ("t::relu", "t::exp"):
        graph.set_outputs(*graph.outputs, node.output)


@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    metas=METAS,
    steps=st.lists(STEP, min_size=1, max_size=20),
    wanted=st.lists(PATTERN_STEP, min_size=1, max_size=5),
    outputs=st.lists(st.integers(0, 4), min_size=1, max_size=2, unique=True),
    results=st.lists(st.integers(0, 60), min_size=1, max_size=3),
    options=st.tuples(st.booleans(), st.booleans()),
    planted=st.booleans(),
    edits=st.lists(st.integers(0, 40), max_size=3),
)
def test_matches_and_near_misses_are_those_of_the_oracle(**drawn):
    """1,000 random graphs and patterns, also after edits between matches; a failure is shrunk."""
    compare(**drawn)


@pytest.mark.parametrize("part", range(sized(9, 90)))
def test_a_thousand_more_graphs_have_the_matches_of_the_oracle(part):
    """The same without hypothesis, which draws at four times the price; by number of commits."""
    for number in range(1000):
        name = f"{seed()} {part} {number}"
        try:
            compare(**drawn_from(Random(name)))
        except Exception as error:
            raise AssertionError(f"the graph drawn from Random({name!r})") from error


def drawn_from(random):
    """The arguments of `compare`, as the strategies of hypothesis would draw them."""

    def steps(kinds, most):
        return [(random.choice(kinds), numbers()) for _ in range(random.randint(1, most))]

    def numbers():
        return random.randint(0, 30), random.randint(0, 30), random.randint(0, 7)

    return {
        "metas": random.choices(DESCRIPTIONS, k=random.randint(1, 3)),
        "steps": steps(OPERATORS, 20),
        "wanted": steps(OPERATORS[:-1] + PIECES, 5),
        "outputs": random.sample(range(5), random.randint(1, 2)),
        "results": random.choices(range(61), k=random.randint(1, 3)),
        "options": (random.random() < 0.5, random.random() < 0.5),
        "planted": random.random() < 0.5,
        "edits": random.choices(range(41), k=random.randint(0, 3)),
    }


def compare(metas, steps, wanted, outputs, results, options, planted, edits):
    """Both matchers on one graph and pattern, before and after edits."""
    pattern = pattern_from(wanted, outputs, options)
    if pattern is None:
        return
    pattern.bind(PlainDialect())
    made = Steps(metas)
    made.run(steps)
    if planted:
        made.run([step for step in wanted if step[0] in OPERATORS])
        results = [*results, len(made.values) - 1]
    graph = made.graph(results)
    assert_same(pattern, graph)
    for number in edits:
        edit(graph, number)
        assert_same(pattern, graph)


def test_matches_go_on_after_an_edit_of_the_graph():
    """What was erased is passed over; what is new is not looked at."""

    def run(kind):
        graph = graph_of(lambda b, x: [x := b.relu(x) for _ in range(6)][-1])
        pattern = pattern_of(lambda b, x: b.relu(b.relu(x)))
        matcher = kind(pattern, graph, ir.AliasAnalysis(graph))
        rewritten = []
        for candidate in matcher.matches():
            match = candidate.result
            rewritten.append([node.name for node in match.get_matched_nodes()])
            nodes = match.get_matched_nodes()
            graph.replace_all_uses(match.outputs[0], match.inputs[0])
            graph.erase_dead(*nodes)
        return rewritten, len(graph)

    assert (
        run(NativeMatcher)
        == run(Matcher)
        == ([["relu", "relu_1"], ["relu_2", "relu_3"], ["relu_4", "relu_5"]], 2)
    )


def test_pattern_is_compiled_once_until_it_is_changed():
    pattern = pattern_of(lambda b, x: b.scale(x, 2))
    program = program_of(pattern)
    assert program_of(pattern) is program
    pattern.attributes = False
    assert program_of(pattern) is not program
    assert candidates(pattern, graph_of(lambda b, x: b.scale(x, 3)))[0]


def test_opaque_arguments_of_pattern_and_graph_are_compared_by_what_they_are():
    """Each graph numbers its objects on its own."""
    graph = graph_of(lambda b, x: (b.op(x, complex(1, 2)), b.op(x, complex(3, 4))))
    pattern = pattern_of(lambda b, x: b.op(b.relu(x), complex(5, 6), complex(3, 4)))
    other = pattern_of(lambda b, x: b.op(x, complex(3, 4)))
    assert [item.result.outputs[0].name for item in candidates(other, graph)[0]] == ["op_1"]
    assert candidates(pattern, graph)[0] == []


def test_matcher_keeps_alive_what_it_reads():
    """The graph of the pattern and the alias analysis may be forgotten by their makers."""
    graph = graph_of(lambda b, x: b.exp(b.relu(x)))
    matcher = NativeMatcher(
        pattern_of(lambda b, x: b.exp(b.relu(x))), graph, ir.AliasAnalysis(graph)
    )
    gc.collect()
    (found,) = matcher.matches()
    assert [node.name for node in found.result.get_matched_nodes()] == ["relu", "exp"]


def test_several_threads_match_one_graph():
    graph = graph_of(lambda b, x: [x := b.exp(b.relu(x)) for _ in range(200)][-1])
    counts = []

    def match():
        pattern = pattern_of(lambda b, x: b.exp(b.relu(x)))
        counts.append(len(answers(NativeMatcher, pattern, graph)[0]))

    threads = [threading.Thread(target=match) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [200] * 4


def test_error_of_the_dialect_comes_out_of_the_search():
    class Broken(PlainDialect):
        def describe(self, meta):
            raise RuntimeError("no description")

    build = Build("graph", Broken())
    graph = build.graph(build.relu(build.input(desc(2))))

    def wanted(b, x):
        x.where(rank=1)
        return b.relu(x)

    for kind in (Matcher, NativeMatcher):
        with pytest.raises(RuntimeError, match="no description"):
            answers(kind, pattern_of(wanted), graph)


def test_a_pattern_whose_matches_hold_arguments_of_the_graph_says_so():
    """They are read before an edit, which moves them in memory."""
    dtype = pattern_of(lambda b, x: b.cast(x, passes.any_value("dtype")))
    listed = pattern_of(lambda b: b.cat(passes.variadic("xs"), 0), 0)
    assert program_of(dtype).has_arguments
    assert program_of(listed).has_arguments
    assert not program_of(pattern_of(lambda b, x: b.relu(x))).has_arguments
