"""Expressions for one element: what they say in C, and what is refused."""

from __future__ import annotations

import pytest

from bringup import jit
from bringup.errors import SchemaError
from bringup.jit.source.element import Exact

NAMES = ("self", "other", "min", "approximate")
KNOWN = {"self": "s", "other": "o", "min": None, "approximate": '"tanh"'}


def expression(text: str) -> jit.ElementExpression:
    return jit.ElementExpression(text, NAMES, ("self", "other"))


@pytest.mark.parametrize(
    ("text", "computed", "code"),
    [
        ("self + 2 * other", "float", "return (s + (2.0f * o));"),
        ("x * a", "double", "return (s * o);"),
        ("-self + 1", "int8_t", "return ((int8_t)((-s) + ((int8_t)1)));"),
        ("abs(self)", "float", "return std::fabs(s);"),
        ("abs(self)", "int64_t", "return (s < 0 ? (int64_t)(-s) : s);"),
        ("max(self, 0.5)", "double", "return bringup_max(s, 0.5);"),
        ("self ** other", "float", "return std::pow(s, o);"),
        ("self < other", "float", "return ((float)(s < o));"),
        ("self if other else 0", "int32_t", "return ((o != 0) ? s : ((int32_t)0));"),
        ("isnan(self) and not other", "float", "return ((float)((s != s) && (!(o != 0))));"),
        ("inf", "float", "return ((float)INFINITY);"),
        ("t = exp(self); t * t", "float", "const float t_ = std::exp(s); return (t_ * t_);"),
        ("t = -self; t, t * a", "float", "const float t_ = (-s); *out0 = t_; *out1 = (t_ * o);"),
        ("uniform() < a", "float", "return ((float)(bringup_uniform_float(random_, 0) < o));"),
        (
            "uniform() - uniform()",
            "double",
            "return (bringup_uniform_double(random_, 0) - bringup_uniform_double(random_, 1));",
        ),
    ],
)
def test_what_it_says_in_c(text: str, computed: str, code: str) -> None:
    assert " ".join(expression(text).code(computed, KNOWN, "std::").split()) == code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("self / (1 - min)", "(s / ((float)(1.0 - m)))"),
        ("self * min", "(s * ((float)m))"),
        (
            "self * (0 if min == 1 else -min * 2)",
            "(s * ((float)((m == 1.0) ? 0.0 : ((-m) * 2.0))))",
        ),
        ("self * (2 * abs(min))", "(s * (2.0f * fabs(((float)m))))"),
    ],
)
def test_what_is_made_of_exact_numbers_alone_is_rounded_once(text: str, code: str) -> None:
    assert expression(text).code("float", {**KNOWN, "min": Exact("m")}) == f"  return {code};\n"


@pytest.mark.parametrize(
    ("text", "with_min", "without"),
    [
        ("self if min is None else max(self, min)", "bringup_max(s, m)", "s"),
        ("min if min is not None and self < min else self", "((s < m) ? m : s)", "s"),
        ("0 if min is None or self < min else 1", "((s < m) ? 0.0f : 1.0f)", "0.0f"),
        ("self if not min is None else other", "s", "o"),
    ],
)
def test_none_is_known_when_the_code_is_written(text: str, with_min: str, without: str) -> None:
    for given, code in (("m", with_min), (None, without)):
        assert expression(text).code("float", {**KNOWN, "min": given}) == f"  return {code};\n"


def test_a_text_is_known_when_the_code_is_written() -> None:
    chosen = expression('self if approximate == "tanh" else other')
    assert chosen.code("float", KNOWN) == "  return s;\n"
    assert chosen.code("float", {**KNOWN, "approximate": '"none"'}) == "  return o;\n"
    assert expression('approximate != "none"').code("float", KNOWN) == "  return 1.0f;\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it ends in no result"),
        ("self +", "it cannot be read"),
        ("t = self", "it ends in no result"),
        ("self; other", "a line before the result is name = expression"),
        ("self = other; self", "self has a meaning already"),
        ("t = self; t = other; t", "t has a meaning already"),
        ("self + weight", "weight is no argument"),
        ("()", "it has no result"),
        ("uniform() + uniform() * uniform()", "an element has 2 random numbers"),
        ("uniform(1)", "uniform() takes 0 numbers, got 1"),
        ("sinc(self)", "sinc"),
        ("exp(self, other)", "exp() takes 1 numbers, got 2"),
        ("self // other", "expected + - * / or **"),
        ("self[0]", "is nothing that can be computed for an element"),
        ("self < other < 1", "compare two things"),
        ("'text'", "'text' is no number"),
        ("True", "True is no number"),
        ("1e999", "inf is no number"),
        ("self + 1 is None", "an argument is None"),
        ("(lambda: self)()", "is no function of numbers"),
        ("self if self in other else 0", "expected < <= > >= == or !="),
    ],
)
def test_what_is_refused(text: str, reason: str) -> None:
    with pytest.raises(SchemaError) as refused:
        expression(text)
    assert str(refused.value).startswith(f"expression=: {text!r}: ")
    assert reason in str(refused.value)


def test_what_has_no_number_is_refused_where_it_is_used() -> None:
    with pytest.raises(SchemaError, match="min is None here: ask for it before it is used"):
        expression("self + min").code("float", KNOWN)
    with pytest.raises(SchemaError, match='approximate is "tanh" here'):
        expression("self + approximate").code("float", KNOWN)


@pytest.mark.parametrize(
    ("text", "floating"),
    [
        ("self + 2 * other", False),
        ("max(abs(self), 1) if self < other else 0", False),
        ("self / other", True),
        ("self * 0.5", True),
        ("exp(self)", True),
        ("self ** 2", True),
        ("inf if self else 0", True),
        ("t = sqrt(self); other", True),
    ],
)
def test_what_needs_floating_point(text: str, floating: bool) -> None:
    assert expression(text).floating_only is floating
