"""What the tests of the GEMM family share: operands in every layout, and torch_catlass's
tolerances.
"""

from __future__ import annotations

import torch

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
# rtol and atol of torch_catlass's tests, by the dtype of the result; float64 is ours.
TOLERANCE = {
    torch.float16: 1e-2,
    torch.bfloat16: 1e-2,
    torch.float32: 1e-3,
    torch.float64: 1e-11,
}
QUANT_TOLERANCE = 1e-1
LAYOUTS = ("row", "padded", "column", "strided", "offset")


def close(ours: torch.Tensor, expected: torch.Tensor, tolerance: float | None = None) -> None:
    """`ours` has the shape of `expected` and its values, which are float64."""
    bound = TOLERANCE[ours.dtype] if tolerance is None else tolerance
    assert ours.shape == expected.shape
    assert ours.is_contiguous()
    torch.testing.assert_close(ours.double(), expected.double(), rtol=bound, atol=bound)


def lay_out(values: torch.Tensor, layout: str) -> torch.Tensor:
    """A view with these values whose last two dimensions lie in memory as `layout` says; what is
    between and before its elements is NaN, or 99 for integers.
    """
    gap = torch.nan if values.is_floating_point() else 99
    *batch, rows, columns = values.shape
    if layout == "row":
        return values.contiguous()
    if layout == "column":
        return values.mT.contiguous().mT
    if layout == "padded":
        view = values.new_full((*batch, rows, columns + 3), gap)[..., :columns]
    elif layout == "strided":
        view = values.new_full((*batch, 2 * rows, 3 * columns), gap)[..., ::2, ::3]
    else:
        view = values.new_full((*batch, rows + 1, columns + 5), gap)[..., 1:, 5:]
    return view.copy_(values)


def matrix(*shape: int, dtype: torch.dtype = torch.float32, layout: str = "row") -> torch.Tensor:
    """Standard normal values in a layout."""
    return lay_out(torch.randn(shape).to(dtype), layout)
