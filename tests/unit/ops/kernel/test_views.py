"""Views of a kernel over tensors that they do not fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bringup import devices, jit, ops
from bringup.errors import KernelError

SOURCE = """#include <bringup/kernel.h>
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<const float, 2> x(args[0]);
  const bringup::View<float, 2> out(args[1]);
  for (int64_t i = 0; i < x.size(0); ++i)
    for (int64_t j = 0; j < x.size(1); ++j) out(i, j) = 2 * x(i, j);
  return 0;
}"""


@pytest.fixture(scope="module")
def double_rows() -> Any:
    return ops.kernel_op(
        "view_tests::double_rows(Tensor x) -> Tensor",
        source=jit.Source(text=SOURCE, name="double_rows.cpp"),
        outputs=ops.empty_like("x"),
    )


@pytest.mark.parametrize(
    ("x", "came"),
    [
        (torch.ones(2, 3, dtype=torch.float64), "float64 of rank 2"),
        (torch.ones(2, 3, dtype=torch.bfloat16), "bfloat16 of rank 2"),
        (torch.ones(2, 3, dtype=torch.bool), "bool of rank 2"),
        (torch.ones(6), "float32 of rank 1"),
        (torch.ones(()), "float32 of rank 0"),
        (torch.ones(2, 3, 4), "float32 of rank 3"),
    ],
)
def test_another_dtype_or_rank_is_refused_instead_of_misread(
    double_rows: Any, x: torch.Tensor, came: str
) -> None:
    for call in (double_rows, torch.ops.view_tests.double_rows):
        with pytest.raises(KernelError) as caught:
            call(x)
        text = str(caught.value)
        assert text == (
            "view_tests::double_rows: the kernel threw: the kernel reads a tensor as float32 of "
            f"rank 2, but it is {came}; say in checks= which dtype and shape the kernel takes"
        )


@pytest.mark.parametrize("kind", ["host", "device"])
def test_a_view_is_refused_on_a_device_that_loads_the_kernel_itself(kind: str) -> None:
    devices.load_driver("sim")
    operator = ops.kernel_op(
        f"view_tests::rows_as_{kind}_code(Tensor x) -> Tensor",
        source=jit.Source(text=SOURCE, name="double_rows.cpp"),
        outputs=ops.empty_like("x"),
        kind=kind,  # type: ignore[arg-type]
    )
    operator(torch.ones(2, 3, dtype=torch.float64, device="npu"))
    with pytest.raises(RuntimeError, match="the kernel reads a tensor as float32 of rank 2"):
        torch.npu.synchronize()
    assert operator(torch.ones(2, 3, device="npu")).tolist() == [[2.0] * 3] * 2


def test_the_kernel_still_runs_over_what_it_fits(double_rows: Any) -> None:
    x = torch.randn(3, 4)
    torch.testing.assert_close(double_rows(x), 2 * x)
    assert double_rows(torch.empty(0, 4)).shape == (0, 4)


def test_a_view_of_any_rank_looks_at_the_dtype_only() -> None:
    text = """#include <bringup/kernel.h>
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<const int32_t> x(args[0]);
  const bringup::View<int32_t> out(args[1]);
  for (int64_t i = 0; i < x.numel(); ++i) out.at(i) = x.at(i) + 1;
  return 0;
}"""
    add_one = ops.kernel_op(
        "view_tests::add_one(Tensor x) -> Tensor",
        source=jit.Source(text=text, name="add_one.cpp"),
        outputs=ops.empty_like("x"),
    )
    x = torch.arange(24, dtype=torch.int32).reshape(2, 3, 4)
    assert torch.equal(add_one(x), x + 1)
    with pytest.raises(KernelError, match="as int32, but it is int64 of rank 3"):
        add_one(x.long())
