"""Constants in patterns, and what `where` asks of a tensor."""

import math

import pytest
from tests.unit.passes.plain import (
    Build,
    PlainDialect,
    data,
    desc,
    graph_of,
    matches,
    only,
    pattern_of,
)

from bringup import ir, passes


def added(element):
    return pattern_of(lambda b, x: b.add(x, element))


def add_of(payload):
    return graph_of(lambda b, x: b.add(b.constant(payload), x))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_number_matches_a_constant_after_rounding_to_its_dtype(dtype):
    """Constants of every float dtype."""
    rounded = {"float16": 0.0999755859375, "bfloat16": 0.10009765625}.get(dtype, 0.1)
    pattern = added(passes.constant(0.1, name="c"))
    result = only(pattern, add_of(data(dtype, (), rounded)))
    assert result["c"].node.op_type == ir.CONSTANT
    assert matches(pattern, add_of(data(dtype, (), 0.11)))[0] == []


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
)
def test_number_matches_whole_constants(dtype):
    """Constants of every integer dtype."""
    assert matches(added(passes.constant(1)), add_of(data(dtype, (2,), 1, 1)))[0]
    assert matches(added(passes.constant(1.0)), add_of(data(dtype, (), 1)))[0]
    found, miss = matches(added(passes.constant(1)), add_of(data(dtype, (2,), 1, 0)))
    assert found == []
    got = "False" if dtype == "bool" else "0"
    assert (miss.reason, miss.expected) == ("a constant differs", "constant(1)")
    assert miss.got == f"{got} at element 1 of %constant"


def test_large_integers_are_compared_exactly():
    """64 bit scalars; no number of a pattern is as large as the largest of uint64."""
    assert matches(added(passes.constant(2**62 + 1)), add_of(data("uint64", (), 2**62 + 1)))[0]
    for wanted in (-1, 2.0**64, 2.0**63):
        found, miss = matches(added(passes.constant(wanted)), add_of(data("uint64", (), 2**64 - 1)))
        assert found == []
        assert miss.got == "18446744073709551615 at element 0 of %constant"
    assert matches(added(passes.constant(2**62 + 1)), add_of(data("int64", (), 2**62 + 1)))[0]
    assert not matches(added(passes.constant(2**62)), add_of(data("int64", (), 2**62 + 1)))[0]


@pytest.mark.parametrize(
    ("element", "number", "fits"),
    [
        (passes.constant(0.0, atol=1e-6), 5e-7, True),
        (passes.constant(0.0, atol=1e-6), 2e-6, False),
        (passes.constant(100.0, rtol=1e-2), 101.0, True),
        (passes.constant(100.0, rtol=1e-2), 102.0, False),
        (passes.constant(math.nan), math.nan, True),
        (passes.constant(math.inf, atol=1.0), math.inf, True),
        (passes.constant(math.inf), -math.inf, False),
        (passes.constant(), 3.0, True),
        (passes.constant(2), 2.0, True),
        (passes.constant(0.0), -0.0, False),
        (passes.constant(-0.0), -0.0, True),
        (passes.constant(0), -0.0, False),
        (passes.constant(0.0, atol=1e-9), -0.0, True),
        (passes.constant(2**53), 2.0**53, True),
    ],
)
def test_tolerance_of_a_constant(element, number, fits):
    """Exact, with tolerance, any; as a number in the call and as a constant."""
    pattern = added(element)
    assert bool(matches(pattern, graph_of(lambda b, x: b.add(x, number)))[0]) == fits
    assert bool(matches(pattern, add_of(data("float64", (), number)))[0]) == fits


def test_two_open_arguments_of_a_pattern_are_the_same_only_to_the_bit():
    """One constant is no other, though `0.0 == -0.0` and `1 == True`."""
    for one, other in ((0.0, -0.0), (1, True), (1, 1.0)):
        first, second = (passes.any_value(among=[item]) for item in (one, other))
        assert first != second
        pattern = pattern_of(lambda b, x, first=first, second=second: b.f(b.f(x, first), second))
        both = graph_of(lambda b, x, one=one, other=other: b.f(b.f(x, one), other))
        twice = graph_of(lambda b, x, one=one: b.f(b.f(x, one), one))
        assert matches(pattern, both)[0]
        assert not matches(pattern, twice)[0]


def test_integers_are_compared_with_floats_without_rounding():
    number = graph_of(lambda b, x: b.add(x, 2**53 + 1))
    assert not matches(added(passes.constant(2.0**53)), number)[0]
    assert not matches(added(passes.any_value(at_most=2.0**53)), number)[0]
    with pytest.raises(ValueError, match="9007199254740993 is a bound that no float is"):
        passes.any_value(at_most=2**53 + 1)


def test_array_matches_a_constant_of_the_same_shape_only():
    """Tensors, high rank, shape misses."""
    element = passes.constant([[1.0, 2.0]])
    assert matches(added(element), add_of(data("float32", (1, 2), 1.0, 2.0)))[0]
    found, miss = matches(added(element), add_of(data("float32", (2,), 1.0, 2.0)))
    assert found == []
    assert (miss.reason, miss.got) == ("a constant has another shape", "[2]")
    high = passes.constant([[[[1]]]])
    assert matches(added(high), add_of(data("int32", (1, 1, 1, 1), 1)))[0]
    assert not matches(added(element), graph_of(lambda b, x: b.add(x, 1.0)))[0]


def test_computed_value_or_unknown_data_is_no_constant():
    """Missing payload on the graph's side."""
    element = passes.constant(1.0)
    miss = matches(added(element), graph_of(lambda b, x: b.sub(x, b.exp(x))))[1]
    assert miss.reason == "the graph has no t::add"
    miss = matches(added(element), graph_of(lambda b, x: b.add(x, b.exp(x))))[1]
    assert (miss.reason, miss.got) == ("an argument is not a constant", "%exp")
    miss = matches(added(element), add_of(None))[1]
    assert miss.reason == "the data of a constant is not known"
    assert matches(added(passes.constant()), add_of(None))[0]
    odd = ir.ConstantData("float8_e4m3fn", (), b"\x00")
    miss = matches(added(element), add_of(odd))[1]
    assert miss.reason == "the data of a constant is not known"


def test_constant_that_others_read_too_does_not_hinder():
    """Shared constants."""

    def function(b, x):
        one = b.constant(data("float32", (), 1.0))
        return b.relu(b.add(x, one)), b.mul(x, one)

    pattern = pattern_of(lambda b, x: b.relu(b.add(x, passes.constant(1.0))))
    assert matches(pattern, graph_of(function))[0] == [["add", "relu"]]

    def whole(b, x):
        return b.relu(b.add(x, b.constant(data("float32", (), 1.0))))

    assert matches(pattern_of(whole), graph_of(function))[0] == [["constant", "add", "relu"]]


# Tensors


def stated(**facts):
    def build(b, x):
        x.where(**facts)
        return b.relu(x)

    return pattern_of(build)


def relu_of(meta):
    build = Build()
    return build.graph(build.relu(build.input(meta)))


@pytest.mark.parametrize(
    ("facts", "expected", "got"),
    [
        ({"dtype": "float16"}, "float16", "float32"),
        ({"dtype": ("float16", "bfloat16")}, "float16 or bfloat16", "float32"),
        ({"rank": 2}, "2", "3"),
        ({"rank": (1, 4)}, "1 or 4", "3"),
        ({"device": "npu"}, "npu", "cpu"),
        ({"shape": (2, 3)}, "[2, 3]", "[2, 3, s0]"),
        ({"shape": (2, 4, None)}, "[2, 4, any]", "[2, 3, s0]"),
        ({"shape": (..., 5)}, "[..., 5]", "[2, 3, s0]"),
        ({"shape": ("B", "B", "N")}, "2", "3"),
    ],
)
def test_tensor_that_is_not_as_stated_is_refused(facts, expected, got):
    """Dtype, shape, rank, device."""
    found, miss = matches(stated(**facts), relu_of(desc(2, 3, "s0")))
    assert found == []
    assert (miss.node, miss.expected, miss.got) == ("input_0", expected, got)
    assert "of 'input_0' differs" in miss.reason or "in 'input_0' differs" in miss.reason


@pytest.mark.parametrize(
    "facts",
    [
        {"dtype": "float32", "rank": 3, "device": "cpu", "shape": ("B", 3, "T")},
        {"dtype": ("float16", "float32"), "rank": (2, 3), "device": ("npu", "cpu")},
        {"shape": (...,)},
        {"shape": (2, ...)},
        {"shape": (..., "T")},
        {"shape": (2, ..., 3, None)},
        {},
    ],
)
def test_tensor_that_is_as_stated_matches(facts):
    assert matches(stated(**facts), relu_of(desc(2, 3, "s0")))[0]


def test_device_is_a_type_or_one_device():
    graph = relu_of(desc(2, device="npu:1"))
    assert [bool(matches(stated(device=one), graph)[0]) for one in ("npu", "npu:1", "npu:0")] == [
        True,
        True,
        False,
    ]


def test_tensor_of_unknown_form_is_refused_where_something_is_stated():
    miss = matches(stated(rank=2), relu_of(None))[1]
    assert miss.reason == "shape and dtype of 'input_0' are not known"


def test_same_name_is_the_same_size_by_expression():
    """Symbolic sizes."""

    def build(b, x, y):
        x.where(shape=("B", "T", 64))
        y.where(shape=("T", "N"))
        return b.op(x, y)

    def sizes(first, second):
        build = Build()
        return build.graph(build.op(build.input(desc(*first)), build.input(desc(*second))))

    pattern = pattern_of(build, 2)
    result = only(pattern, sizes(("s0", "2*s1", 64), ("2*s1", 8)))
    assert [result[name] for name in ("B", "T", "N")] == ["s0", "2*s1", 8]
    found, miss = matches(pattern, sizes(("s0", "s1", 64), ("2*s1", 8)))
    assert found == []
    assert (miss.reason, miss.expected, miss.got) == ("size 'T' in 'input_1' differs", "s1", "2*s1")


def test_computed_tensor_and_alternatives_may_be_stated_too():
    build = Build()
    x = build.input(desc(2, 3))
    graph = build.graph(build.exp(build.relu(x)))
    for rank, expected in ((2, 1), (3, 0)):
        computed = pattern_of(lambda b, x, r=rank: b.exp(b.relu(x).where(rank=r)))
        either = pattern_of(
            lambda b, x, r=rank: b.exp(passes.one_of(b.relu(x), b.tanh(x)).where(rank=r))
        )
        assert [len(matches(p, graph)[0]) for p in (computed, either)] == [expected, expected]


def test_sizes_bound_by_an_order_that_fails_are_forgotten():
    """Backtracking takes named sizes back."""
    build = Build()
    x, y = build.input(desc(2)), build.input(desc(3))
    graph = build.graph(build.sub(build.add(x, y), x))

    def wanted(b, p, q):
        return b.sub(b.add(p.where(shape=("N",)), q.where(shape=("M",))), q.where(shape=("M",)))

    result = only(pattern_of(wanted, 2), graph)
    assert (result["N"], result["M"]) == (3, 2)


@pytest.mark.parametrize(
    ("facts", "error", "words"),
    [
        ({"rank": "3"}, TypeError, "rank must be a number from 0 up, got '3'"),
        ({"shape": "BT"}, TypeError, "shape must be a tuple of sizes"),
        ({"shape": (1.5,)}, TypeError, "a size must be a number from 0 up"),
        ({"shape": (..., 1, ...)}, ValueError, "at most one"),
        ({"dtype": 3}, TypeError, "dtype must be a name"),
    ],
)
def test_statement_that_cannot_be_meant_is_refused(facts, error, words):
    (x,) = Build().inputs(1)
    with pytest.raises(error, match=words):
        x.where(**facts)


def test_statements_are_joined_unless_they_contradict():
    (x,) = Build().inputs(1)
    x.where(rank=2).where(dtype="float32")
    with pytest.raises(ValueError, match=r"ranks was \(2,\) already, got \(3,\)"):
        x.where(rank=3)


def test_plain_dialect_is_a_dialect():
    dialect: ir.Dialect = PlainDialect()
    assert dialect.name == "plain"
