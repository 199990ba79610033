"""Random graphs and patterns: replacing a pattern by itself must not change any result."""

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from bringup import compiler, ir, passes

UNARY = ("relu", "neg", "tanh")
BINARY = ("add", "mul", "maximum")
STEPS = st.lists(
    st.tuples(st.sampled_from(UNARY + BINARY), st.integers(0, 50), st.integers(0, 50)),
    min_size=1,
    max_size=14,
)
PATTERN = st.lists(
    st.tuples(st.sampled_from(UNARY + BINARY), st.integers(0, 9), st.integers(0, 9)),
    min_size=1,
    max_size=4,
)
RESULTS = st.lists(st.integers(0, 50), min_size=1, max_size=3)


def steps_of(steps, inputs, call):
    """Run steps over a growing list of values: each reads one or two of those before it."""
    values = list(inputs)
    for name, left, right in steps:
        operands = [values[left % len(values)]]
        if name in BINARY:
            operands.append(values[right % len(values)])
        values.append(call(name, *operands))
    return values


def pattern_graph(steps):
    """The steps as a graph of two inputs that returns the last value; None if it is no pattern."""
    builder = ir.GraphBuilder("pattern")
    values = steps_of(
        steps, builder.create_inputs(2), lambda name, *items: builder.op(f"aten::{name}", *items)
    )
    return builder.build_and_reset(values[-1])


def is_pattern(steps):
    try:
        passes.Pattern(pattern_graph(steps))
    except passes.PassError:
        return False
    return True


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS, wanted=PATTERN.filter(is_pattern), results=RESULTS, planted=st.booleans())
def test_replacing_a_pattern_by_itself_keeps_every_result(steps, wanted, results, planted):
    if planted:
        steps = [*steps, *wanted]

    def function(*inputs):
        values = steps_of(steps, inputs, lambda name, *items: getattr(torch, name)(*items))
        # clones, so that no result is an input
        return tuple(torch.clone(values[index % len(values)]) for index in (*results, -1))

    inputs = (torch.randn(3), torch.randn(3))
    module = make_fx(function, tracing_mode="fake")(*inputs)
    expected = module(*inputs)
    passes.clear_registered_passes()

    @passes.register_fusion_pass(name="P", stage=passes.PassStage.AFTER_INFER_SHAPE)
    class Itself(passes.PatternFusionPass):
        def patterns(self):
            return pattern_graph(wanted)

        def replacement(self, match_result):
            return pattern_graph(wanted)

    result = compiler.apply_passes(module)["P"]
    module.graph.lint()
    assert all(map(torch.equal, module(*inputs), expected))
    assert result.matches or result.near_misses
