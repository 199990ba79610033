"""What repeats in a graph, against an enumeration of all its connected parts."""

import itertools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.passes.small import chain
from tests.unit.passes.support import STAGE
from torch.fx.experimental.proxy_tensor import make_fx

from bringup import compiler, ir, passes
from bringup.compiler.mirror import Mirror
from bringup.passes.mining.growth import Links
from bringup.passes.mining.mined_pattern import MinedPattern

UNARY = ("relu", "neg")
BINARY = ("add", "sub")
STEPS = st.lists(
    st.tuples(st.sampled_from(UNARY + BINARY), st.integers(0, 50), st.integers(0, 50)),
    min_size=2,
    max_size=9,
)


def traced(steps, results):
    def function(*inputs):
        values = list(inputs)
        for name, left, right in steps:
            operands = [values[left % len(values)]]
            if name in BINARY:
                operands.append(values[right % len(values)])
            values.append(getattr(torch, name)(*operands))
        return tuple(torch.clone(values[index % len(values)]) for index in (*results, -1))

    return make_fx(function, tracing_mode="fake")(torch.randn(3), torch.randn(3))


def is_connected(nodes):
    seen, agenda = set(), [nodes[0]]
    while agenda:
        node = agenda.pop()
        if node in seen or node not in nodes:
            continue
        seen.add(node)
        agenda.extend([value.node for value in node.inputs] + list(node.users))
    return len(seen) == len(nodes)


def most_apart(places):
    """How many places can be taken without overlap, the one that ends first, first."""
    ordered = [tuple(sorted(place, key=lambda node: node.order)) for place in places]
    taken, count = set(), 0
    for place in sorted(ordered, key=lambda place: [node.order for node in reversed(place)]):
        if taken.isdisjoint(place):
            taken.update(place)
            count += 1
    return count


def brute_force(graph, max_nodes):
    """By the set of places: how often it occurs without overlap. Every connected set of nodes is
    made a pattern, which is then looked for.
    """
    members = [node for node in graph.nodes if node.users and node.op_type[:4] != "ir::"]
    found = {}
    for size in range(2, max_nodes + 1):
        for nodes in itertools.combinations(members, size):
            if not is_connected(nodes):
                continue
            mined = MinedPattern(nodes)
            if not mined.inputs or not mined.outputs:
                continue
            mined.search(graph)
            places = frozenset(frozenset(place.values()) for place in mined.places)
            count = most_apart(places)
            if count >= 2:
                found[frozenset(frozenset(n.name for n in place) for place in places)] = count
    return found


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS, results=st.lists(st.integers(0, 50), max_size=2), twice=st.booleans())
def test_everything_that_repeats_is_found_and_counted(steps, results, twice):
    mirror = Mirror(traced(steps + steps if twice else steps, results))
    graph = mirror.graph
    found = passes.mine(
        graph, max_nodes=4, max_outputs=99, most=None, effort=10**6, overlapping=True
    )
    expected = brute_force(graph, 4)
    assert found.is_complete
    assert sorted(repeat.count for repeat in found.repeats) == sorted(expected.values())
    for repeat in found.repeats:
        counted = {frozenset(place) for place in repeat.places}
        assert any(counted <= one and len(counted) == expected[one] for one in expected)
        assert repeat.saved == repeat.count * (len(repeat.example) - 1)


class Norms(torch.nn.Module):
    def __init__(self, count=3):
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.randn(8) for _ in range(count))

    def forward(self, x):
        for number, weight in enumerate(self.weights):
            scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 0.1**number)
            x = torch.tanh(x * scale * weight)
        return x


def norms(count=3):
    with torch.no_grad():
        return make_fx(Norms(count), tracing_mode="fake", _allow_non_fake_inputs=True)(
            torch.randn(2, 8)
        )


def test_largest_saving_comes_first_and_numbers_that_differ_are_open():
    (repeat,) = compiler.mine(norms()).repeats
    assert repeat.count == 3
    assert repeat.saved == 3 * 6
    assert [kind.split("::")[1] for kind in repeat.op_types] == [
        "pow.Tensor_Scalar",
        "mean.dim",
        "add.Tensor",
        "rsqrt",
        "mul.Tensor",
        "mul.Tensor",
        "tanh",
    ]
    assert '"aten::pow.Tensor_Scalar", inputs[0], 2)' in repeat.pattern
    assert '"aten::mean.dim", pow_1, [-1], True)' in repeat.pattern
    assert 'passes.any_value("other")' in repeat.pattern
    assert (repeat.inputs, repeat.outputs) == (2, 1)


def matches_of(text, module):
    """How often a pass with this pattern matches; nothing is rewritten."""
    indented = text.replace("\n", "\n    ")
    source = (
        "class Pasted(passes.PatternFusionPass):\n"
        f"    {indented}\n"
        "    def meet_requirements(self, match_result):\n"
        "        return False\n"
    )
    names = {"passes": passes, "torch": torch}
    exec(source, names)
    passes.register_fusion_pass(name="Pasted", stage=STAGE)(names["Pasted"])
    result = compiler.apply_passes(module)["Pasted"]
    passes.clear_registered_passes()
    return result.refused


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
def test_pattern_text_finds_what_was_counted(steps):
    passes.clear_registered_passes()
    module = traced(steps + steps, [])
    for repeat in compiler.mine(module, max_outputs=2).repeats:
        assert matches_of(repeat.pattern, module) >= repeat.count


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.cat([torch.relu(x), x], 1).view(-1),
        lambda x: torch.split(torch.relu(x), 2, 1)[1].clone(memory_format=torch.contiguous_format),
        lambda x: torch.native_layer_norm(torch.relu(x), [4], None, None, 1e-5)[0] + 1,
        lambda x: torch.relu(x).to(torch.float64) * float("inf"),
        lambda x: torch.relu(x).clamp(None, 3),
        lambda x: torch.add(torch.relu(x), x, alpha=3),
    ],
    ids=["list", "several outputs", "optional", "dtype", "none", "keyword"],
)
def test_every_kind_of_argument_is_written_so_that_it_matches(function):
    def twice(x):
        return function(x), function(x + 1)

    module = make_fx(twice, tracing_mode="fake")(torch.randn(4, 4))
    repeats = compiler.mine(module).repeats
    assert repeats[0].count == 2
    for repeat in repeats:
        assert matches_of(repeat.pattern, module) == repeat.count


def test_symbolic_sizes_are_open():
    def twice(x):
        return tuple(torch.relu(y).view(y.shape[0] * y.shape[1]) for y in (x, x + 1))

    module = make_fx(twice, tracing_mode="symbolic")(torch.randn(4, 3))
    repeat = compiler.mine(module).repeats[0]
    assert matches_of(repeat.pattern, module) == repeat.count == 2


def test_what_must_not_be_replaced_is_no_part():
    def random(x):
        return torch.relu(torch.bernoulli(torch.sigmoid(x))), torch.relu(
            torch.bernoulli(torch.sigmoid(x + 1))
        )

    module = make_fx(random, tracing_mode="fake")(torch.rand(4))
    assert compiler.mine(module, max_outputs=4).repeats == ()


def test_graph_without_dialect_and_without_torch_operators():
    graph = chain("a", "b", "c", "a", "b", "d")
    mined = passes.mine(graph)
    (repeat,) = mined.repeats
    assert (repeat.count, repeat.op_types) == (2, ("demo::a", "demo::b"))
    assert repeat.example == ("a", "b")
    assert mined.is_complete
    assert "2 x 2 nodes (2 fewer if fused): demo::a demo::b" in str(mined)


def test_near_miss_says_what_is_almost_a_further_place():
    graph = chain("a", "b", "c", "a", "b", "c", "a", "x", "c")
    repeat = passes.mine(graph).repeats[0]
    assert repeat.near_miss.pattern == "repeat_1"
    assert (repeat.near_miss.matched, repeat.near_miss.node) == (1, "x")


def test_nothing_repeats():
    mined = passes.mine(chain("a", "b", "c"))
    assert mined.repeats == ()
    assert str(mined) == "g: 3 operators that passes may replace; nothing repeats"


def test_result_is_json():
    from bringup import report

    text = report.to_json(compiler.mine(norms()).as_dict())
    assert '"count": 3' in text


def test_each_node_counts_for_the_part_that_saves_most():
    graph = chain(*["a", "b", "c"] * 4)
    (repeat,) = passes.mine(graph, max_nodes=3).repeats
    assert (repeat.count, repeat.saved) == (4, 8)
    assert len(passes.mine(graph, max_nodes=3, overlapping=True).repeats) > 1


def test_graph_is_not_changed():
    module = norms()
    code = module.code
    compiler.mine(module)
    assert module.code == code


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"min_count": 1}, "min_count must be from 2, got 1"),
        ({"max_nodes": 17}, "max_nodes must be from 2 to 16, got 17"),
        ({"max_outputs": 0}, "max_outputs must be from 1, got 0"),
        ({"most": 0}, "most must be from 1, got 0"),
        ({"effort": 0}, "effort must be from 1, got 0"),
    ],
)
def test_numbers_out_of_bounds_are_refused_by_name(settings, error):
    with pytest.raises(ValueError, match=error):
        passes.mine(chain("a"), **settings)


def test_wrong_kinds_are_refused():
    with pytest.raises(TypeError, match=r"mine takes an ir\.Graph, got str"):
        passes.mine("graph")
    with pytest.raises(TypeError, match="max_nodes must be a number, got '3'"):
        passes.mine(chain("a"), max_nodes="3")
    with pytest.raises(TypeError, match=r"mine takes a torch\.fx\.GraphModule"):
        compiler.mine(torch.nn.Linear(2, 2))


def test_large_graph_is_searched_in_stretches_and_counted_whole():
    """6,000 nodes; what is followed does not grow with the graph."""
    graph = chain(*["a", "b", "c", "d", "e", "f"] * 1000)
    mined = passes.mine(graph, max_nodes=6)
    assert not mined.is_complete
    assert mined.repeats[0].count >= 999  # which node of the six comes first is open
    assert mined.repeats[0].saved == mined.repeats[0].count * 5
    growth = Links(graph)
    assert len(growth.grown) == 1024


def test_alike_nodes_without_end_are_left_out():
    """Seven readers of one value cannot be told apart: 5,040 orders of one part are not tried."""
    builder = ir.GraphBuilder("star")
    (x,) = builder.create_inputs(1)
    centres = [builder.op("demo::a", x) for _ in range(2)]
    leaves = [builder.op("demo::b", centre) for centre in centres for _ in range(8)]
    graph = builder.build_and_reset(leaves)
    mined = passes.mine(graph, max_nodes=9, max_outputs=9)
    assert mined.repeats
    assert not mined.is_complete
