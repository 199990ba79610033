"""Numbers that `==` or a rounding cannot tell apart, in every place where passes compare numbers:
what matches is the same number to the bit, and what a rewrite that is exact for the number it names
gives is what eager gives, bit for bit.
"""

import math
import random
import struct

import numpy as np
import pytest
import torch
from onnx import parser
from tests.sweeps.support import part
from tests.unit.passes.matching.test_native_matcher import assert_same
from tests.unit.passes.plain import data, graph_of, pattern_of
from torch.fx.experimental.proxy_tensor import make_fx

from bringup import compiler, passes

STAGE = passes.PassStage.AFTER_INFER_SHAPE
OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_0001))[0]
REAL = [
    0.0, -0.0, 0, False, 1, 1.0, True, -1, -1.0, math.inf, -math.inf, math.nan, -math.nan,
    OTHER_NAN, 2**53, 2**53 + 1, 2.0**53, 2**63 - 1, 2.0**63, 1e-45, 5e-324, 0.1,
]  # fmt: skip
NUMBERS = [
    *REAL, 0j, -0j, complex(0.0, -0.0), complex(-0.0, 0.0), complex(1, 0), np.float64(0.0),
    np.float64(-0.0),
]  # fmt: skip


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """No passes from before, none from outside."""
    monkeypatch.setenv("BRINGUP_PASS_LIBRARY", "0")
    passes.clear_registered_passes()
    yield
    passes.clear_registered_passes()


def same(one, other):
    """The oracle: one type and one bit pattern."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (float, complex)):
        parts = [struct.pack("<dd", item.real, item.imag) for item in (one, other)]
        return parts[0] == parts[1]
    return one == other


def alike(one, other):
    """The oracle of a constant, which takes a number of any kind: one value without rounding."""
    if isinstance(one, float) and isinstance(other, float):
        return same(one, other)
    return one == other and math.copysign(1, one) == math.copysign(1, other)


def literal(one, other):
    return pattern_of(lambda b, x: b.f(x, one)), graph_of(lambda b, x: b.f(x, other))


def nested(one, other):
    return pattern_of(lambda b, x: b.f(x, [2, (one,)])), graph_of(
        lambda b, x: b.f(x, [2, (other,)])
    )


def among(one, other):
    wanted = passes.any_value("a", among=[7, one])
    return pattern_of(lambda b, x: b.f(x, wanted)), graph_of(lambda b, x: b.f(x, other))


def repeated(one, other):
    wanted = passes.any_value("a")
    return (
        pattern_of(lambda b, x: b.f(b.f(x, wanted), wanted)),
        graph_of(lambda b, x: b.f(b.f(x, one), other)),
    )


def two_choices(one, other):
    """What is open twice in one pattern, with two numbers: the second is not the first."""
    first, second = (passes.any_value(among=[item]) for item in (other, one))
    return (
        pattern_of(lambda b, x: b.f(b.f(x, first), second)),
        graph_of(lambda b, x: b.f(b.f(x, other), other)),
    )


def commuting(one, other):
    return pattern_of(lambda b, x: b.add(one, x)), graph_of(lambda b, x: b.add(x, other))


def number(one, other):
    wanted = passes.constant(one)
    return pattern_of(lambda b, x: b.f(x, wanted)), graph_of(lambda b, x: b.f(x, other))


def two_constants(one, other):
    first, second = passes.constant(other), passes.constant(one)
    return (
        pattern_of(lambda b, x: b.f(b.f(x, first), second)),
        graph_of(lambda b, x: b.f(b.f(x, other), other)),
    )


def element(one, other):
    """An element of a constant, of the dtype that keeps the number."""
    dtype = "bool" if isinstance(other, bool) else "int64" if isinstance(other, int) else "float64"
    held = data(dtype, (1,), other)
    wanted = passes.constant(one)
    return (
        pattern_of(lambda b, x: b.f(x, wanted)),
        graph_of(lambda b, x: b.f(x, b.constant(held))),
    )


def payload(one, other):
    """A constant of a pattern against one of the graph."""
    held = [data("float64", (1,), float(item)) for item in (one, other)]
    return tuple(
        make(lambda b, x, item=item: b.f(x, b.constant(item)))
        for make, item in zip((pattern_of, graph_of), held, strict=True)
    )


def near(one, other):
    """With a tolerance the sign of zero says nothing; infinities and NaN are themselves."""
    wanted = passes.constant(one, atol=1e-30)
    return pattern_of(lambda b, x: b.f(x, wanted)), graph_of(lambda b, x: b.f(x, other))


def is_near(one, other):
    if isinstance(other, int) and isinstance(one, int) and one == other:
        return True
    one, other = float(one), float(other)
    return abs(one - other) <= 1e-30 or one == other or same(one, other)


def rounded(one, other):
    return same(float(one), float(other))


PLACES = {
    **dict.fromkeys((literal, nested, among, repeated, two_choices), (NUMBERS, same)),
    commuting: (NUMBERS, same),
    number: (REAL, alike),
    two_constants: (REAL, alike),
    element: (REAL, lambda one, other: alike(one, other) or in_float64(one, other)),
    payload: (REAL, rounded),
    near: (REAL, is_near),
}


def in_float64(one, other):
    """A number is rounded to the dtype of a constant before it is compared."""
    return isinstance(other, float) and same(float(one), other)


PAIRS = [
    (place, one, other)
    for place, (numbers, _) in PLACES.items()
    for one in range(len(numbers))
    for other in range(len(numbers))
]
MINIMAL = [(place, 0, 1) for place in (literal, among, repeated, number)]


@pytest.mark.parametrize(
    ("place", "one", "other"),
    part(PAIRS, always=MINIMAL),
    ids=lambda item: item.__name__ if callable(item) else str(item),
)
def test_a_pattern_finds_the_same_number_only(place, one, other):
    """Both matchers, and the oracle."""
    numbers, oracle = PLACES[place]
    first, second = numbers[one], numbers[other]
    pattern, graph = place(first, second)
    assert bool(assert_same(pattern, graph)) == oracle(first, second), (first, second)


# The two kinds of a Scalar

KINDS = [
    ("addmm", lambda a, x, n: torch.ops.aten.addmm(x, x, x, beta=n)),
    ("addmm alpha", lambda a, x, n: torch.ops.aten.addmm(x, x, x, alpha=n)),
    ("add", lambda a, x, n: torch.ops.aten.add.Tensor(x, n)),
    ("add alpha", lambda a, x, n: torch.ops.aten.add.Tensor(x, x, alpha=n)),
    ("mul", lambda a, x, n: torch.ops.aten.mul.Tensor(x, n)),
    ("div", lambda a, x, n: torch.ops.aten.div.Tensor(x, n)),
    ("pow", lambda a, x, n: torch.ops.aten.pow.Tensor_Scalar(x, n)),
    ("eq", lambda a, x, n: torch.ops.aten.eq.Scalar(x, n)),
    ("clamp", lambda a, x, n: torch.ops.aten.clamp(x, n)),
    ("where", lambda a, x, n: torch.ops.aten.where.ScalarOther(x > 0, x, n)),
    ("full_like", lambda a, x, n: torch.ops.aten.full_like(x, n)),
    ("full", lambda a, x, n: torch.ops.aten.full([2, 2], n) + x),
    ("masked_fill", lambda a, x, n: torch.ops.aten.masked_fill.Scalar(x, x > 0, n)),
]
SCALAR = {
    "addmm",
    "addmm alpha",
    "add alpha",
    "pow",
    "eq",
    "clamp",
    "full_like",
    "masked_fill",
}
"""Those whose number is a `Scalar`: for a tensor a number counts with its kind, and `where` makes
one of its number before it is traced."""
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.int64,
          torch.int32, torch.bool]  # fmt: skip
SCALARS = [(1, 1.0), (1.0, 1), (2, 2.0), (0, 0.0), (0, -0.0), (-0.0, 0), (1, True), (True, 1.0),
           (2**24 + 1, float(2**24 + 1)), (2**53 + 1, 2.0**53), (-1.0, -1)]  # fmt: skip
CALLS = [(*call, dtype, pair) for call in KINDS for dtype in DTYPES for pair in SCALARS]


def values_of(dtype):
    found = torch.tensor([[0.0, 1.0], [-1.0, 3.0]]).to(dtype)
    if dtype == torch.int64:
        found[0, 0] = 2**24 + 1
    return found


def bits_of(tensor):
    return tensor.dtype, tensor.contiguous().flatten().view(torch.uint8).tolist()


def attempt(function, *arguments):
    try:
        return function(*arguments)
    except (RuntimeError, NotImplementedError, TypeError):
        return None


@pytest.mark.parametrize(
    ("name", "call", "dtype", "pair"),
    part(CALLS, always=[(*KINDS[0], torch.float32, (1, 1.0)), (*KINDS[2], torch.int64, (1, 1.0))]),
    ids=lambda value: "call" if callable(value) else str(value),
)
def test_kinds_of_a_scalar_are_one_where_torch_computes_the_same(name, call, dtype, pair):
    """A call with one number is found by a pattern with the other only if both give the same; and
    it is found where a floating point tensor decides.
    """
    one, other = pair
    x = values_of(dtype)
    wanted, given = (attempt(call, None, x, item) for item in (one, other))
    if wanted is None or given is None:
        return
    traced = make_fx(lambda x: call(None, x, other), tracing_mode="fake")(x)
    pattern = compiler.trace_pattern(lambda x: call(None, x, one), x)
    found = found_in(pattern, traced)
    if bits_of(wanted) != bits_of(given):
        assert not found
    is_number = {type(one), type(other)} == {int, float} and alike(one, other)
    if is_number and (dtype.is_floating_point or dtype.is_complex) and name in SCALAR:
        assert found


def found_in(pattern, module):
    """How often a pattern is found in a graph of torch.fx."""
    seen = []

    class Look(passes.PatternFusionPass):
        def patterns(self):
            return [pattern]

        def meet_requirements(self, match_result):
            seen.append(match_result)
            return False

        def replacement(self, match_result):
            raise AssertionError

    passes.register_fusion_pass(name="Look", stage=STAGE)(Look)
    compiler.apply_passes(module, ["Look"])
    return len(seen)


# Programs


def negative(x):
    return -torch.div(x, 0.0)


EXACT = [
    (lambda x: x + (-0.0), lambda x: x.clone()),
    (lambda x: x - 0.0, lambda x: x.clone()),
    (lambda x: x / -0.0, negative),
    (lambda x: x * 1.0, lambda x: x.clone()),
    (lambda x: x * -1.0, lambda x: torch.neg(x)),
    (lambda x: torch.pow(x, 2), lambda x: x * x),
    (lambda x: torch.copysign(x, -0.0), lambda x: -torch.abs(x)),
    (lambda x: torch.eq(x, 2**24 + 1), lambda x: ~torch.ne(x, 2**24 + 1)),
]
"""A search, and a replacement that gives the same bits for the number that the search names (the
sign of NaN aside)."""
STEPS = [
    ("add", (0.0, -0.0, 0)), ("sub", (0.0, -0.0, 0)), ("div", (0.0, -0.0)), ("mul", (1.0, 1, -1.0)),
    ("pow", (2, 2.0)), ("copysign", (0.0, -0.0)), ("eq", (2**24 + 1, float(2**24 + 1))),
]  # fmt: skip


def random_program(seed):
    """A program of one tensor, and its steps in words."""
    draw = random.Random(seed)
    steps = [(name, draw.choice(numbers)) for name, numbers in draw.choices(STEPS, k=4)]

    def program(x):
        results = []
        for name, item in steps:
            results.append(getattr(torch, name)(x, item))
            x = results[-1] if results[-1].dtype == x.dtype else x
        return results

    dtype = draw.choice([torch.float32, torch.float64, torch.int64])
    return program, dtype, steps


INPUTS = [0.0, -0.0, 1.0, -2.5, math.inf, -math.inf, math.nan, 2.0**24 + 1, 2.0**24, 2.0**24 + 2]
WHOLE = [0, 1, -2, 2**24 + 1, 2**24, 2**24 + 2, 2**53 + 1]


@pytest.mark.parametrize("block", part(range(40)))
def test_exact_rewrites_keep_every_bit(block):
    """Random programs under all of the rewrites."""
    for index, (search, replace) in enumerate(EXACT):
        compiler.register_replacement(search, replace, [torch.ones(4)], name=f"E{index}")
    for seed in range(15 * block, 15 * block + 15):
        program, dtype, steps = random_program(seed)
        x = torch.tensor(INPUTS if dtype.is_floating_point else WHOLE, dtype=dtype)
        module = make_fx(program, tracing_mode="fake")(x)
        compiler.apply_passes(module)
        for one, other in zip(program(x), module(x), strict=True):
            assert one.dtype == other.dtype, steps
            assert torch.equal(one.isnan(), other.isnan()), steps
            assert bits_of(one[~one.isnan()]) == bits_of(other[~other.isnan()]), steps


# ONNX

ONNX_CASES = [
    (op, one, other)
    for op in ("Div", "Add", "Elu", "Mul")
    for one in (0.0, -0.0, 1.0, math.inf)
    for other in (0.0, -0.0, 1.0, math.inf)
]


@pytest.mark.parametrize(("op", "one", "other"), part(ONNX_CASES, always=[("Div", -0.0, 0.0)]))
def test_onnx_patterns_find_the_same_number_only(op, one, other):
    """Initializers and attributes."""
    body = f"y = Elu<alpha={other}>(x)" if op == "Elu" else f"y = {op}(x, c)"
    held = "" if op == "Elu" else f"<float c = {{{other}}}>"
    head = '<ir_version: 10, opset_import: ["" : 17]> g (float[4] x) => (float[4] y)'
    text = f"{head} {held} {{ {body} }}"
    seen = []

    @passes.register_fusion_pass(name="Look", stage=STAGE)
    class Look(passes.PatternFusionPass):
        @passes.pattern
        def found(self, inputs):
            build = inputs[0].builder
            if op == "Elu":
                return build.op("onnx::Elu", inputs[0], alpha=one)
            return build.op(f"onnx::{op}", inputs[0], passes.constant(one))

        def meet_requirements(self, match_result):
            seen.append(match_result)
            return False

        def replacement(self, match_result):
            raise AssertionError

    compiler.apply_passes(parser.parse_model(text), ["Look"])
    assert bool(seen) == same(one, other)
