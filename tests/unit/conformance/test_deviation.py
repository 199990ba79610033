"""How far two values are apart, and what is allowed."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bringup.conformance import _deviation
from bringup.conformance._deviation import deviation, leaf_deviations, tolerance_of, worst


@given(st.lists(st.floats(width=32), min_size=1, max_size=8))
def test_a_value_equals_itself(values: list[float]) -> None:
    tensor = torch.tensor(values)
    assert not deviation(tensor, tensor.clone()).exceeds
    assert not deviation(tensor, tensor.clone(), pointwise=True).exceeds


@given(st.floats(1e-30, 1e30), st.floats(3e-5, 1.0))
def test_an_error_is_relative_to_the_largest_value(scale: float, error: float) -> None:
    expected = torch.tensor([scale, scale / 2], dtype=torch.float32)
    got = expected.clone()
    got[1] += scale * error
    found = deviation(got, expected)
    assert found.kind == "value"
    assert found.error == pytest.approx(error, rel=1e-2)
    assert found.index == (1,)


def test_an_element_that_is_small_beside_the_largest_may_be_off_unless_it_stands_alone() -> None:
    expected, got = torch.tensor([1.0, 1e-4]), torch.tensor([1.0, 1.02e-4])
    assert not deviation(got, expected).exceeds
    assert deviation(got, expected, pointwise=True).exceeds


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        ([1.0, math.nan], [1.0, 2.0]),
        ([1.0, 2.0], [1.0, math.nan]),
        ([1.0, math.inf], [1.0, -math.inf]),
        ([1.0, math.nan], [1.0, math.inf]),
    ],
)
def test_a_nan_or_infinity_on_one_side_only_is_told(
    got: list[float], expected: list[float]
) -> None:
    found = deviation(torch.tensor(got), torch.tensor(expected))
    assert (found.kind, found.index) == ("nonfinite", (1,))
    assert found.words == "1 of 2 elements"


@pytest.mark.parametrize("value", [torch.tensor([1, 2]), torch.tensor([True, False]), 3, "a"])
def test_what_is_no_float_is_exact(value: object) -> None:
    other = value + 1 if isinstance(value, int) else "b"
    if isinstance(value, torch.Tensor):
        other = value.flip(0)
    assert not deviation(value, value).exceeds
    assert deviation(value, other).kind == "exact"


def test_numbers_of_python_have_the_tolerance_of_float32() -> None:
    assert not deviation(1.0, 1.0 + 1e-6).exceeds
    assert deviation(1.0, 1.001).kind == "value"


def test_other_shapes_dtypes_and_counts_are_of_another_form() -> None:
    x = torch.ones(2)
    assert deviation(x, torch.ones(3)).kind == "form"
    assert deviation(x, x.double()).kind == "form"
    assert leaf_deviations([x], [x, x])[0].kind == "form"


def test_complex_sparse_and_empty_tensors_are_compared_by_value() -> None:
    x = torch.tensor([1 + 2j, 3 - 1j])
    assert not deviation(x, x.clone()).exceeds
    assert deviation(x, x.conj()).kind == "value"
    sparse = torch.eye(3).to_sparse()
    assert not deviation(sparse, sparse).exceeds
    assert deviation(sparse, sparse * 2).kind == "value"
    assert not deviation(torch.empty(0), torch.empty(0)).exceeds


def test_a_zero_that_is_expected_allows_nothing() -> None:
    found = deviation(torch.tensor([1e-30]), torch.zeros(1))
    assert (found.kind, found.error) == ("value", math.inf)


def test_the_worst_is_what_exceeds() -> None:
    within = _deviation.Deviation(error=5.0)
    beyond = _deviation.Deviation(error=1e-3, kind="value")
    lost = _deviation.Deviation(error=0.0, kind="nonfinite")
    assert worst([within, beyond]) is beyond
    assert worst([beyond, lost]) is lost
    assert not worst([]).exceeds


def test_a_factor_widens_the_tolerance() -> None:
    expected, got = torch.ones(2), torch.ones(2) * (1 + 5e-5)
    assert deviation(got, expected).exceeds
    assert not deviation(got, expected, factor=10).exceeds


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.complex32])
def test_a_complex_dtype_has_the_tolerance_of_its_parts(dtype: torch.dtype) -> None:
    assert tolerance_of(dtype) == tolerance_of(dtype.to_real())
