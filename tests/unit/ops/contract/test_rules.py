"""Output rules: the native interpreter (allocation) and the Python one (fake, meta) agree."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.expressions import EXPRESSIONS
from tests.unit.ops.conftest import Define
from tests.unit.ops.support import ELEMENTWISE

from bringup import jit, ops
from bringup.errors import ContractError

# Small enough to be allocated, and as often negative.
RESULTS = EXPRESSIONS.map(lambda text: f"({text}) % 7 - 1")
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
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    items=st.lists(st.one_of(RESULTS, SLICES), max_size=3),
    shape=st.lists(st.integers(0, 4), max_size=3),
    n=st.one_of(st.integers(-5, 5), st.sampled_from([2**40, 2**63 - 1, -(2**63)])),
    flag=st.booleans(),
    y=st.sampled_from([None, torch.ones(1)]),
    sizes=st.lists(st.integers(0, 3), max_size=3),
)
def test_real_and_meta_outputs_have_the_same_shape_or_the_same_error(
    define: Define, items: list[str], shape: list[int], n: int, flag: bool, y: Any, sizes: list[int]
) -> None:
    rule = define(
        "rule(Tensor x, int n, bool flag, int[] sizes, Tensor? y) -> Tensor",
        outputs=ops.empty(*items, dtype=torch.uint8),
        checks=ops.kernel_checks(),
    )
    try:
        real = outcome(lambda: rule(torch.ones(shape), n, flag, sizes, y))
        meta = None if y is None else y.to("meta")
        fake = outcome(lambda: rule(torch.ones(shape, device="meta"), n, flag, sizes, meta))
        assert real == fake
        assert real == outcome(lambda: rule.overload(torch.ones(shape), n, flag, sizes, y))
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


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("expression", "n", "size"),
    [
        ("(n // -1) % 7", -(2**63), "'(n // -1) % 7' does not fit into 64 bits"),
        ("n % -1", -(2**63), (0,)),
        ("n // 2 % 7", -(2**63), (-(2**62) % 7,)),
        ("n // -4 + 3", 7, (1,)),
        ("-(n % -4)", 7, (1,)),
    ],
)
def test_division_rounds_down_at_the_ends_of_the_numbers_too(
    define: Define, device: str, expression: str, n: int, size: object
) -> None:
    rule = define("rule(Tensor x, int n) -> Tensor", outputs=ops.empty(expression))
    found = outcome(lambda: rule(torch.ones(1, device=device), n))
    assert size in found if isinstance(size, str) and isinstance(found, str) else found == size


@pytest.mark.parametrize("given", [torch.ones(2, 3), torch.ones(3)])
def test_a_bucket_is_the_same_expression_with_the_same_words(
    define: Define, given: torch.Tensor
) -> None:
    """One parser and evaluator for buckets, rules and grids, in both spellings; no wrong answer
    where 64 bits do not hold a number, which once was True without a word.
    """
    source = '#include "bringup/kernel.h"\nBRINGUP_EXPORT int32_t run(void** args, int32_t, '
    source += "const bringup_ctx*) { *bringup::View<int64_t, 1>(args[4]).data() = BIG; return 0; }"
    text = "x.shape[1] * n * n > 1 and (size(y,0) == 0 or flag)"
    for spelling in (text, text.replace("x.shape[1]", "size(x,1)")):
        template = jit.Template(text=source, name="k.cpp", abi="args", buckets={"BIG": spelling})
        bucket = define(
            "bucket(Tensor x, Tensor? y, int n, bool flag=False) -> Tensor",
            source=template,
            outputs=ops.empty(1, dtype=torch.int64),
            checks=ops.kernel_checks(),
        )
        for n in (0, 1, 2**40):
            values = {"x": given, "y": None, "n": n, "flag": False, "out": None}
            try:
                expected: object = int(jit.params(template, **values).buckets["BIG"])
            except ValueError as error:
                expected = str(error).split(": ", 1)[1]
            try:
                found: object = bucket(given, None, n).item()
            except ContractError as error:
                found = str(error).split(": ", 1)[1]
            assert found == expected
        bucket.undefine()


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
