"""What tells a result from the CPU's, and gradients of what has none."""

from __future__ import annotations

import math
import re

import pytest
import torch

from bringup.conformance._samples import difference, gradients

X = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("got", "expected", "words"),
    [
        (X, X.clone(), ""),
        (X, X + 1e-9, ""),
        (X, X.double(), "float32"),
        (X, X.t().contiguous().t(), r"strides \(3, 1\), expected \(1, 2\)"),
        (X, X.clone().requires_grad_(), "True"),
        (X, 1.0, "Tensor, expected float"),
        ((X, 1), (X, 2), "result 1: 1, expected 2"),
        ([X], (X,), "structure"),
        (1.0, 1.0 + 1e-7, ""),
        (1.0, 1.1, "1.0, expected 1.1"),
        (math.nan, math.nan, ""),
        (math.nan, 1.0, "nan, expected 1.0"),
        (1.0, math.nan, "1.0, expected nan"),
        (torch.device("meta"), torch.device("cpu"), ""),
        ("a", "b", "'a', expected 'b'"),
    ],
)
def test_a_difference_is_told_in_words(got: object, expected: object, words: str) -> None:
    found = difference(got, expected, values=True, device="cpu")
    assert re.search(words, found) if words else found == ""


def test_only_numbers_are_left_out_where_values_do_not_count() -> None:
    assert difference((X, 1), (X + 1, 2), values=False, device="cpu") == ""
    assert difference(X, X.int(), values=False, device="cpu")
    assert difference(X, X, values=True, device="npu") == "on cpu"


def test_what_has_no_gradient_has_none() -> None:
    x = torch.ones(2, requires_grad=True)
    assert gradients(x, x > 0) == []
    assert gradients(torch.ones(2), x * 2) == []
    (found,) = gradients(x, x * 2)
    assert found is not None
    assert found.tolist() == pytest.approx([2 * (math.cos(i) + 0.5) for i in range(2)])
