"""A function that gets sizes one by one knows of no other dimensions: tensors with more of them are
refused.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.unit.ops.c_functions import ARGS, CONTRACT, LIBRARY_ARGS, RMS, SIGNATURE, Build, expected
from tests.unit.ops.conftest import Define

from bringup import jit, ops
from bringup.errors import ContractError, SchemaError

ROWS = jit.Source(
    name="rows.c",
    text="""#include <stdint.h>
int rows(float* out, const float* x, int64_t a, int64_t b) {
  for (int64_t i = 0; i < a * b; ++i) out[i] = x[i] + 1;
  return 0;
}""",
)

FILL = jit.Source(
    name="fill.c",
    text="""#include <stdint.h>
int rows(float* out, int64_t a, int64_t b) {
  for (int64_t i = 0; i < a * b; ++i) out[i] = 1;
  return 0;
}""",
)


def rows(define: Define, args: str, name: str = "rows", **more: Any) -> ops.KernelOperator:
    source = ROWS if "ptr(x)" in args else FILL
    options = {"source": source, "entry": "rows", "args": args, "outputs": ops.empty_like("x")}
    return define(f"{name}(Tensor x) -> Tensor", **{**options, **more})


def refused(operator: ops.KernelOperator, x: torch.Tensor) -> bool:
    """Whether every path refuses it for its rank; the same answer from all of them."""
    answers = set()
    for path, given in ((operator, x), (operator.overload, x), (operator, x.to("meta"))):
        try:
            path(given)
        except ContractError as error:
            answers.add("dimensions" in str(error))
        else:
            answers.add(False)
    (answer,) = answers
    return answer


@pytest.mark.parametrize("library", [False, True])
def test_a_tensor_with_more_dimensions_than_the_function_knows_is_refused(
    define: Define, build: Build, library: bool
) -> None:
    source = build(RMS) if library else jit.Source(name="rms.c", text=RMS)
    rms = define(SIGNATURE, source=source, args=LIBRARY_ARGS if library else ARGS, **CONTRACT)
    x, w = torch.randn(2, 8), torch.randn(8)
    torch.testing.assert_close(rms(x, w), expected(x, w))
    for path in (rms, rms.overload):
        with pytest.raises(ContractError, match=r"x must have 2 dimensions, got shape \[2, 3, 8\]"):
            path(torch.randn(2, 3, 8), torch.randn(3))
    with pytest.raises(ContractError, match="x must have 2 dimensions"):
        rms(torch.randn(2, 3, 8, device="meta"), torch.randn(3, device="meta"))


@pytest.mark.parametrize(
    ("args", "ranks"),
    [
        ("ptr(out), ptr(x), size(x,0), size(x,1)", {2}),
        ("ptr(out), ptr(x), size(out,0), size(out,1)", {2}),
        ("ptr(out), ptr(x), size(x,0), size(x,-1)", {2}),
        ("ptr(out), ptr(x), size(x,0), 1", {1}),
        ("ptr(out), ptr(x), numel(x) // size(x,-1), size(x,-1)", {1, 2, 3}),
        ("ptr(out), ptr(x), numel(x), 1", {0, 1, 2, 3}),
        ("ptr(out), size(x,0), size(x,1)", {2}),
        ("ptr(out), size(out,0), size(x,1)", {2}),
    ],
)
def test_the_rank_is_what_the_named_axes_leave_open(
    define: Define, args: str, ranks: set[int]
) -> None:
    operator = rows(define, args)
    for rank in range(1, 4):
        assert refused(operator, torch.ones((2,) * rank)) == (rank not in ranks), rank


def test_the_sizes_of_another_tensor_of_the_same_shape_count(define: Define) -> None:
    operator = define(
        "fill(Tensor x, Tensor y) -> Tensor",
        source=FILL,
        entry="rows",
        args="ptr(out), size(x,0), size(x,1)",
        outputs=ops.empty_like("y"),
        checks=[ops.same_shape("x", "y"), ops.dtype("y", torch.float32)],
    )
    assert operator(torch.ones(2, 3), torch.ones(2, 3)).sum() == 6
    for given in (torch.ones(2, 3, 4), torch.ones(2, 3, 4, device="meta")):
        with pytest.raises(ContractError, match="x must have 2 dimensions"):
            operator(given, given)


@pytest.mark.parametrize(
    ("args", "more", "reason"),
    [
        ("ptr(out), ptr(x), size(x,1), 1", {}, r"passes size\(x,1\), which are not all sizes"),
        ("ptr(out), ptr(x), size(x,-1), 1", {}, r"passes size\(x,-1\), which are not all"),
        (
            "ptr(out), size(out,0), size(out,1)",
            {"outputs": ops.empty("x.shape[0]", "x.shape[1]", "2", dtype=torch.float32)},
            r"passes size\(out,0\), size\(out,1\).*allocated with 3 dimensions",
        ),
        (
            "ptr(out), size(out,1), 1",
            {"outputs": ops.empty("x.shape[0]", "x.shape[1]", dtype=torch.float32)},
            r"passes size\(out,1\).*allocated with 2 dimensions",
        ),
    ],
)
def test_sizes_that_leave_a_dimension_out_are_refused_unless_somebody_answers_for_it(
    define: Define, args: str, more: dict[str, Any], reason: str
) -> None:
    with pytest.raises(SchemaError, match=reason):
        rows(define, args, **more)
    rows(define, args, checks=ops.kernel_checks(), **more)


def test_all_sizes_of_a_new_output_are_enough(define: Define) -> None:
    outputs = ops.empty("x.shape[0]", "2", dtype=torch.float32)
    operator = rows(define, "ptr(out), size(out,0), size(out,1)", outputs=outputs)
    assert operator(torch.ones(3)).sum() == 6


def test_a_declared_rank_or_shape_says_otherwise(define: Define) -> None:
    args = "ptr(out), ptr(x), size(x,0), size(x,1)"
    third = rows(define, args, checks=ops.rank("x", 3))
    assert not refused(third, torch.ones(2, 2, 1))
    assert refused(third, torch.ones(2, 2))
    shaped = rows(
        define, "ptr(out), ptr(x), size(x,0), 1", "shaped", checks=ops.shape("x", "x.shape[0]", 1)
    )
    shaped(torch.ones(2, 1))
    with pytest.raises(ContractError, match="x must have shape"):
        shaped(torch.ones(2, 2))


def test_a_rank_is_a_number_of_dimensions() -> None:
    for wrong in (-1, True, "2"):
        with pytest.raises(SchemaError, match="expected a number of dimensions"):
            ops.rank("x", wrong)  # type: ignore[arg-type]
