"""Raw kernels: arguments by schema, results as torch's Meta kernel describes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.unit.ops.operators import kernels

from bringup import devices, jit
from bringup.errors import KernelError, MissingKernelError, SchemaError

Declare = Callable[..., devices.OperatorKernel]

EMBEDDING = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const bringup::View<const T, 2> weight(args[0]);
  const DLTensor& indices = bringup::tensor(args[1]);
  T* out = static_cast<T*>(bringup::tensor(args[5]).data);
  for (int64_t i = 0; i < bringup::numel(indices); ++i) {
    const int64_t row = static_cast<const INDEX*>(indices.data)[i];
    if (row < 0 || row >= weight.size(0)) return bringup::fail(ctx, "an index is out of range");
    for (int64_t j = 0; j < weight.size(1); ++j) *out++ = weight(row, j);
  }
  return 0;
}
"""
DTYPES = {"T": "weight", "INDEX": "indices"}
VIEW_OF_DOUBLES, VIEW_OF_ROWS = (
    f"""
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {{
  const bringup::View<const {view}> x(args[0]);
  return x.data() == nullptr;
}}
"""
    for view in ("double", "double, 2")
)


def test_macros_name_the_dtypes_of_arguments(declare: Declare) -> None:
    declare("aten::embedding", EMBEDDING, "raw", dtypes=DTYPES, strided=("weight",))
    weight = torch.randn(4, 5)
    for dtype in (torch.int64, torch.int32):
        indices = torch.tensor([[3, 0], [1, 1]], dtype=dtype)
        got = torch.embedding(weight.t().to("npu").t(), indices.to("npu"))
        assert torch.equal(got.cpu(), torch.embedding(weight, indices))
    native = {row.operator: row.calls for row in devices.fallback_report().native}
    assert native["aten::embedding"] == 2


MULTIPLY = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<const T> x(args[0]);
  const bringup::View<T> out(args[2]);
  const T* by = static_cast<const T*>(bringup::tensor(args[1]).data);
  for (int64_t i = 0; i < x.numel(); ++i) out.at(i) = x.at(i) * *by;
  return 0;
}
"""
GREATER = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<const T> x(args[0]);
  const bringup::View<bool> out(args[2]);
  const bool is_whole = static_cast<T>(1.5) == 1;
  for (int64_t i = 0; i < x.numel(); ++i)
    out.at(i) = is_whole ? x.at(i) > bringup::scalar<int64_t>(args[1])
                         : x.at(i) > bringup::scalar<double>(args[1]);
  return 0;
}
"""


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("number", [2, 1.5, True, 2.0])
def test_a_scalar_of_a_comparison_has_one_kind(
    declare: Declare, dtype: torch.dtype, number: float
) -> None:
    """Its result is no number, so the operands say which."""
    declare("aten::gt.Scalar", GREATER, "raw", supports=("floating", "integral"))
    x = torch.tensor([1, 2, 3], dtype=dtype)
    assert torch.equal((x.to("npu") > number).cpu(), x > number)


@pytest.mark.parametrize("number", [2, 2.5, True, torch.tensor(2.0), torch.tensor(2)])
def test_a_number_in_the_place_of_a_tensor_is_none_of_another_dtype(
    declare: Declare, number: float
) -> None:
    """The kernel gets it as a tensor, whose bytes it would read as T."""
    declare("aten::mul", MULTIPLY, "raw")
    x = torch.tensor([1.0, 2.0, 3.0])
    assert torch.equal((x.to("npu") * number).cpu(), x * number)


@pytest.mark.parametrize("source", [VIEW_OF_DOUBLES, VIEW_OF_ROWS])
def test_a_view_over_another_dtype_or_rank_is_refused_on_the_device(
    declare: Declare, source: str
) -> None:
    declare("aten::erfinv", source, "raw")
    torch.erfinv(torch.ones(3, device="npu"))
    with pytest.raises(RuntimeError, match=r"erfinv[\s\S]*the kernel reads a tensor as float64"):
        torch.npu.synchronize()


def test_a_failure_of_the_kernel_names_the_operator_at_the_next_wait(declare: Declare) -> None:
    declare("aten::embedding", EMBEDDING, "raw", dtypes=DTYPES)
    torch.embedding(torch.ones(2, 2, device="npu"), torch.tensor([7], device="npu"))
    with pytest.raises((RuntimeError, KernelError), match=r"embedding[\s\S]*out of range"):
        torch.npu.synchronize()


def test_a_strided_argument_is_copied_unless_the_kernel_takes_it(declare: Declare) -> None:
    declare("aten::native_layer_norm", kernels.LAYER_NORM, "raw")
    x = torch.randn(6, 4)
    got = torch.layer_norm(x.to("npu").t(), (6,))
    torch.testing.assert_close(got.cpu(), torch.layer_norm(x.t(), (6,)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_a_tensor_of_a_dtype_that_no_macro_names_falls_back(
    declare: Declare, dtype: torch.dtype
) -> None:
    declare("aten::native_layer_norm", kernels.LAYER_NORM, "raw")
    x = torch.ones(2, 3, device="npu")
    torch.layer_norm(x, (3,), x[0])  # the plan for one dtype is there
    with pytest.raises(RuntimeError, match="expect parameter to have scalar type"):
        torch.layer_norm(x, (3,), x[0].to(dtype))


def test_frozen_a_dtype_that_was_not_built_is_refused_by_name(declare: Declare) -> None:
    text = kernels.LAYER_NORM + "// of the frozen test\n"
    declare("aten::native_layer_norm", text, "raw")
    with jit.frozen(), pytest.raises(MissingKernelError, match="aten::native_layer_norm"):
        torch.layer_norm(torch.ones(2, 3, device="npu"), (3,))


def test_what_a_program_needs_is_recorded_for_prebuild(declare: Declare) -> None:
    declare("aten::mul", kernels.MUL)
    with jit.record() as recording:
        torch.ones(2, device="npu", dtype=torch.bfloat16) * 2
    assert [spec.source.name for spec in recording.specs] == ["kernel.entry.cpp"]


def test_a_macro_of_no_argument_is_refused() -> None:
    with pytest.raises(SchemaError, match="expected a tensor argument"):
        devices.kernel("aten::embedding", source=kernels.source(EMBEDDING), kind="raw",
                       dtypes={"T": "wieght"})  # fmt: skip


ROWS = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const DLTensor& x = bringup::tensor(args[0]);
  const T* from = static_cast<const T*>(x.data);
  T* to = static_cast<T*>(bringup::tensor(args[1]).data);
  for (int64_t i = 0; i < bringup::numel(x); ++i) to[i] = 2 * from[i];
  return 0;
}
"""


@pytest.mark.parametrize("strided", [(), ("self", "out")])
def test_results_lie_in_rows_unless_the_kernel_takes_any_layout(
    declare: Declare, strided: tuple[str, ...]
) -> None:
    """Though torch describes that of a transposed tensor as transposed."""
    declare("aten::neg", ROWS, "raw", strided=strided)
    x = torch.arange(6.0).reshape(2, 3)
    turned = x.to("npu").t()
    got = torch.neg(turned)
    assert torch.equal(got.cpu(), 2 * x.t())
    assert got.stride() == (turned.stride() if strided else (2, 1))
    given = torch.zeros(2, 3, device="npu").t()
    if not strided:  # the CPU computes it
        assert torch.equal(torch.neg(turned, out=given).cpu(), -x.t())
