"""How two results differ: nests, exactness, NaN, infinities, dtypes and layouts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from bringup._differences import cosine, gap, largest_gap, leaves, magnitude, not_close


def t(*values: Any) -> torch.Tensor:
    return torch.tensor(values)


def u64(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint64)


@pytest.mark.parametrize(
    ("ours", "expected", "apart", "reason"),
    [
        ([t(1, 2)], [t(1, 5)], 3.0, ""),
        ([t(True)], [t(False)], 1.0, ""),
        ([t(2**60 + 1)], [t(2**60)], 1.0, ""),
        ([t(-(2**63))], [t(2**63 - 1)], 2.0**64, ""),
        ([u64(2**64 - 1)], [u64(1)], 2.0**64, ""),
        ([u64(2**63)], [u64(2**63 - 1)], 1.0, ""),
        ([t(3 + 4j)], [t(0j)], 5.0, ""),
        ([t(2.0).to(torch.float8_e5m2)], [t(1.0).to(torch.float8_e5m2)], 1.0, ""),
        ([t(1.0), t(7)], [t(1.5), t(9)], 2.0, ""),
        ([t(math.inf)], [t(math.inf)], 0.0, ""),
        ([t(math.nan)], [t(math.nan)], 0.0, ""),
        ([t()], [t()], 0.0, ""),
        (
            [t(1.0)],
            [t(1.0, 2.0)],
            math.inf,
            "the outputs differ in kind at [0]: float32[1] where eager has float32[2]",
        ),
        ([t(math.inf)], [t(1.0)], math.inf, "the outputs differ by an infinity at [0]"),
        ([t(1.0), t(math.nan)], [t(9.0), t(1.0)], math.nan, "the outputs differ by a NaN at [1]"),
        (
            [t(1)],
            [t(1.0)],
            math.inf,
            "the outputs differ in kind at [0]: int64[1] where eager has float32[1]",
        ),
        (
            [],
            [t(1.0)],
            math.inf,
            "the outputs differ in structure: 0 values where eager has 1",
        ),
        ([3], [5.5], 2.5, ""),
        ([2**70], [2**70], 0.0, ""),
        ([math.nan], [math.nan], 0.0, ""),
        ([None, t(1.0)], [None, t(1.0)], 0.0, ""),
        (
            [None],
            [t(1.0)],
            math.inf,
            "the outputs differ in kind at [0]: NoneType where eager has float32[1]",
        ),
        (["a", 1], ["b", 1], math.inf, "the outputs differ at [0]: 'a' for 'b'"),
        ([[], t(1.0)], [[], t(1.0)], 0.0, ""),
    ],
)
def test_difference_is_the_largest_over_all_tensors(
    ours: list[Any], expected: list[Any], apart: float, reason: str
) -> None:
    found, why = largest_gap(leaves(ours), leaves(expected))
    assert found == pytest.approx(apart, nan_ok=True)
    assert why == reason


def test_nonfinite_values_on_both_sides_are_equal_only_where_the_caller_says_so() -> None:
    for value in (math.nan, math.inf, -math.inf):
        assert gap(t(1.0, value), t(1.0, value)) == gap(value, value) == 0.0
        for apart in (
            gap(t(1.0, value), t(1.0, value), nonfinite_equal=False),
            gap(value, value, nonfinite_equal=False),
        ):
            assert apart is not None
            assert math.isnan(apart)


def test_any_layout_is_compared_by_its_elements() -> None:
    dense = torch.tensor([[0.0, 2.0], [-3.0, 0.0]])
    scaled = torch.quantize_per_tensor(dense, 0.5, 0, torch.qint8)
    assert gap(dense.to_sparse(), dense.to_sparse_csr()) == 0.0
    assert gap(scaled, dense) == 0.0
    assert gap(torch.tensor([1j]).conj(), t(1j)) == 2.0
    assert [magnitude(value) for value in (dense.to_sparse(), scaled, t(3 + 4j))] == [3.0, 3.0, 5.0]


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (t(-2.0, math.inf, math.nan), 2.0),
        (t(-(2**63)), 2.0**63),
        (t(), 0.0),
        (-7, 7.0),
        (math.inf, 0.0),
        (10**400, 0.0),
        ("a", 0.0),
    ],
)
def test_magnitude_is_of_finite_elements(value: Any, size: float) -> None:
    assert magnitude(value) == size


@pytest.mark.parametrize(
    ("ours", "expected", "similarity"),
    [
        (t(1.0, 0.0), t(0.0, 1.0), 0.0),
        (t(1.0, 1.0), t(2.0, 2.0), 1.0),
        (t(0.0, 0.0), t(0.0, 0.0), 1.0),
        (t(1.0, 0.0), t(1.0, math.nan), 0.0),
        (t(1.0, math.inf), t(1.0, math.inf), 0.0),
    ],
)
def test_cosine_of_numbers_that_are_not_finite_is_no_agreement(
    ours: torch.Tensor, expected: torch.Tensor, similarity: float
) -> None:
    assert cosine(ours, expected) == pytest.approx(similarity)


def test_what_assert_close_says_is_one_line() -> None:
    assert not_close(t(1.0, math.nan), t(1.0, math.nan)) == ""
    assert not_close(t(1.0), t(1.1), rtol=0.2, atol=0.0) == ""
    said = not_close(t(1.0), t(2.0))
    assert said.startswith("Tensor-likes are not close! Mismatched elements: 1 / 1")
    assert "\n" not in said
    assert not_close(None, t(1.0)).startswith("None mismatch")
