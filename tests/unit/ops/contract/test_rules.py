"""Output rules: the native interpreter (allocation) and the Python one (fake, meta) agree."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.ops.conftest import Define
from tests.unit.ops.support import ELEMENTWISE

from bringup import ops
from bringup.errors import ContractError

_LEAVES = st.one_of(
    st.integers(-9, 9).map(str),
    st.sampled_from(["n", "x.numel()", "len(sizes)"]),
    st.integers(-3, 2).map(lambda dim: f"x.shape[{dim}]"),
)
EXPRESSIONS = st.recursive(
    _LEAVES,
    lambda inner: st.builds(
        lambda left, operator, right: f"({left} {operator} {right})",
        inner,
        st.sampled_from(["+", "-", "*", "//", "%"]),
        inner,
    ),
    max_leaves=6,
)
BOUNDS = st.one_of(st.just(""), st.integers(-4, 4).map(str))
SLICES = st.builds(
    lambda source, start, stop: f"*{source}[{start}:{stop}]",
    st.sampled_from(["x.shape", "sizes"]),
    BOUNDS,
    BOUNDS,
)


def outcome(call: Any) -> object:
    try:
        return tuple(call().shape)
    except ContractError as error:
        return str(error)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    items=st.lists(st.one_of(EXPRESSIONS, SLICES), max_size=3),
    shape=st.lists(st.integers(0, 4), max_size=3),
    n=st.integers(-5, 5),
    sizes=st.lists(st.integers(0, 3), max_size=3),
)
def test_real_and_meta_outputs_have_the_same_shape_or_the_same_error(
    define: Define, items: list[str], shape: list[int], n: int, sizes: list[int]
) -> None:
    rule = define(
        "rule(Tensor x, int n, int[] sizes) -> Tensor", outputs=ops.empty(*items, dtype=torch.uint8)
    )
    try:
        real = outcome(lambda: rule(torch.ones(shape), n, sizes))
        assert real == outcome(lambda: rule(torch.ones(shape, device="meta"), n, sizes))
        assert real == outcome(lambda: rule.overload(torch.ones(shape), n, sizes))
    finally:
        rule.undefine()


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("x.shape[2]", r"x must have at least 3 dimensions for 'x.shape\[2\]', got shape \[4, 5\]"),
        ("x.shape[-3]", "x must have at least 3 dimensions"),
        ("n // 0", "'n // 0' divides by zero"),
        ("n - 9", r"output 0 would have the negative shape \[-8\] \(n - 9\)"),
    ],
)
def test_a_rule_that_cannot_be_met_says_so_for_real_and_meta_tensors(
    define: Define, expression: str, text: str
) -> None:
    rule = define("rule(Tensor x, int n) -> Tensor", outputs=ops.empty(expression))
    for device in ("cpu", "meta"):
        with pytest.raises(ContractError, match=text):
            rule(torch.ones(4, 5, device=device), 1)


def test_a_size_beyond_64_bits_is_an_error(define: Define) -> None:
    rule = define("rule(Tensor x, int n) -> Tensor", outputs=ops.empty("n * n"))
    with pytest.raises(ContractError, match=r"'n \* n' does not fit into 64 bits"):
        rule(torch.ones(1), 2**62)


@pytest.mark.parametrize(
    ("rule", "dtype"),
    [
        (ops.empty_like("x"), torch.float16),
        (ops.empty_like("x", dtype=torch.int32), torch.int32),
        (ops.empty(1), torch.float16),
        (ops.empty(1, dtype="y"), torch.int64),
        (ops.empty(1, dtype=torch.bool), torch.bool),
    ],
)
def test_outputs_have_the_declared_dtype_on_real_and_meta_tensors(
    define: Define, rule: ops.OutputRule, dtype: torch.dtype
) -> None:
    operator = define("f(Tensor x, Tensor y) -> Tensor", outputs=rule, checks=ELEMENTWISE[:1])
    x, y = torch.ones(1, dtype=torch.float16), torch.ones(1, dtype=torch.int64)
    assert operator(x, y).dtype == dtype
    assert operator(x.to("meta"), y.to("meta")).dtype == dtype


def test_fake_strides_are_the_real_strides_for_transposed_inputs(add: ops.KernelOperator) -> None:
    x = torch.randn(3, 4).t()
    meta = add(x.to("meta"), x.to("meta"))
    assert add(x, x).stride() == meta.stride() == (3, 1)


def test_several_outputs_come_as_a_tuple(define: Define) -> None:
    split = define(
        "split(Tensor x) -> (Tensor, Tensor)",
        outputs=(ops.empty("x.shape[0] // 2"), ops.empty("x.shape[0] - x.shape[0] // 2")),
    )
    for call in (split, split.overload):
        assert [tuple(part.shape) for part in call(torch.ones(7))] == [(3,), (4,)]


@pytest.fixture
def cast(define: Define) -> ops.KernelOperator:
    """An output whose dtype a ScalarType argument gives."""
    return define(
        "cast(Tensor? first, Tensor x, ScalarType? out_dtype=None) -> Tensor",
        outputs=ops.empty("*x.shape", dtype="out_dtype"),
        checks=(ops.dtype("out_dtype", torch.float16, torch.float64), ops.kernel_checks()),
    )


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_dtype_argument_gives_the_dtype_of_the_output(
    cast: ops.KernelOperator, device: str
) -> None:
    x = torch.zeros(2, 3, dtype=torch.int32, device=device)
    assert cast(None, x, torch.float16).dtype == torch.float16
    assert cast(None, x, out_dtype=torch.float64).dtype == torch.float64
    assert cast.overload(None, x, torch.float64).dtype == torch.float64


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_without_a_dtype_argument_the_first_tensor_gives_the_dtype_of_the_output(
    cast: ops.KernelOperator, device: str
) -> None:
    x = torch.zeros(2, 3, dtype=torch.int16, device=device)
    assert cast(None, x).dtype == torch.int16
    assert cast(x.double(), x, None).dtype == torch.int16


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_dtype_argument_outside_its_contract_lists_the_allowed_ones(
    cast: ops.KernelOperator, device: str
) -> None:
    words = r"out_dtype must be torch.float16 or torch.float64, got torch.int8$"
    with pytest.raises(ContractError, match=words):
        cast(None, torch.zeros(2, device=device), torch.int8)
