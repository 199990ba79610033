"""`ops.kernel_op`: from a kernel file to an operator that can be called."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.unit.ops.support import ADD

from bringup import ops
from bringup.errors import ContractError

Define = Callable[..., ops.KernelOperator]


@pytest.fixture
def add(define: Define) -> ops.KernelOperator:
    return define(
        "add(Tensor x, Tensor y) -> Tensor",
        ADD,
        outputs=ops.empty_like("x"),
        checks=[ops.same_shape("x", "y"), ops.same_dtype("x", "y")],
        dtypes={"T": "x"},
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_callable_and_torch_ops_compute_the_same(
    add: ops.KernelOperator, dtype: torch.dtype
) -> None:
    x, y = torch.arange(6).reshape(2, 3).to(dtype), torch.ones(2, 3, dtype=dtype)
    assert torch.equal(add(x, y), x + y)
    assert torch.equal(add(x, y=y), x + y)
    assert torch.equal(add.overload(x, y), x + y)


def test_shapes_that_differ_raise_on_both_paths(add: ops.KernelOperator) -> None:
    for call in (add, add.overload):
        with pytest.raises(
            ContractError, match=r"::add: x and y must have the same shape, got x: \[5\], y: \[3\]"
        ):
            call(torch.ones(5), torch.ones(3))
