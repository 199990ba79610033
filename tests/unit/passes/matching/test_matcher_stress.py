"""Work grows with the graph and no faster. Work is counted in comparisons, not timed."""

import pytest
from tests.oracles.matching import Matcher
from tests.unit.passes.plain import Build, pattern_of

from bringup import ir


class Counting(Matcher):
    """Counts what it compares."""

    compared = 0

    def _compare(self, frame, pattern, target, owner):
        self.compared += 1
        return super()._compare(frame, pattern, target, owner)


def work(pattern, graph):
    """How many matches there are, and how many comparisons finding them took."""
    matcher = Counting(pattern, graph, ir.AliasAnalysis(graph))
    found = sum(matcher.match_at(target) is not None for target in matcher.candidates())
    return found, matcher.compared


def diamonds(b, x, depth, bottom="exp"):
    """Stacked diamonds: each level reads the level below twice."""
    value = getattr(b, bottom)(x)
    for _ in range(depth):
        value = b.add(b.relu(value), b.relu(value))
    return value


@pytest.mark.parametrize("bottom", ["exp", "neg"])
@pytest.mark.parametrize("depth", [5, 20])
def test_stacked_diamonds_are_walked_once(depth, bottom):
    """Depth 20, whether the last node fits or not; GE needs 4**depth visits."""
    build = Build()
    (x,) = build.inputs(1)
    graph = build.graph(diamonds(build, x, depth, bottom))
    pattern = pattern_of(lambda b, x: diamonds(b, x, depth))
    found, compared = work(pattern, graph)
    assert found == (bottom == "exp")
    assert compared <= 30 * depth  # there are as many anchors as levels


def layers(number):
    """A graph of 6 nodes a layer, one match of `layer` in each."""
    build = Build()
    (x,) = build.inputs(1)
    for _ in range(number):
        x = layer(build, build.exp(x))
    return build.graph(x)


def layer(b, x):
    return b.add(x, b.mul(b.relu(x), b.sigmoid(b.neg(x))))


def test_work_on_a_thousand_matches_is_linear():
    """1,000 matches."""
    pattern = pattern_of(layer)
    found, compared = work(pattern, layers(500))
    twice, more = work(pattern, layers(1000))
    assert (found, twice) == (500, 1000)
    assert more == 2 * compared


def test_work_on_50k_nodes_is_that_of_its_matches():
    """50k nodes."""
    pattern = pattern_of(layer)
    graph = layers(8333)
    assert len(graph) > 49_000
    found, compared = work(pattern, graph)
    assert found == 8333
    assert compared / found == work(pattern, layers(10))[1] / 10


def test_hundred_patterns_look_only_at_nodes_of_their_type():
    """100 patterns, none of which has an anchor in the graph, compare nothing."""
    graph = layers(100)
    for number in range(100):
        pattern = pattern_of(lambda b, x, n=number: getattr(b, f"absent{n}_")(x))
        assert work(pattern, graph) == (0, 0)


def test_search_that_cannot_be_decided_early_gives_up_and_says_so():
    """Every order of every operand fails only at the very end."""
    build = Build()
    leaves = [build.add(*build.inputs(2)) for _ in range(16)]
    value = leaves[0]
    for leaf in leaves[1:]:
        value = build.op(value, leaf)
    graph = build.graph(build.sub(value, *build.inputs(1)))

    def wanted(b, *xs):
        values = [b.add(xs[i], xs[i + 1]) for i in range(0, 32, 2)]
        total = values[0]
        for one in values[1:]:
            total = b.op(total, one)
        return b.sub(total, xs[0])

    matcher = Counting(pattern_of(wanted, 32), graph, ir.AliasAnalysis(graph))
    assert [matcher.match_at(target) for target in matcher.candidates()] == [None]
    assert matcher.compared < 100_000
    # the reason that came furthest stays; that it gave up came no further
    assert "is another value" in matcher.near_miss.reason
