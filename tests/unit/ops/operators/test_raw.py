"""Raw kernels: what they get for lists of tensors, and for results that nobody wants."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from bringup import devices
from bringup.errors import SchemaError

# Of vectors, one after the other.
CAT = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const auto parts = bringup::list<DLTensor>(args[0]);
  const bringup::View<T, 1> out(args[2]);
  int64_t at = 0;
  for (int64_t p = 0; p < parts.size(); ++p) {
    const bringup::View<const T, 1> part(parts[p]);
    for (int64_t i = 0; i < part.size(0); ++i) out(at++) = part(i);
  }
  return 0;
}
"""

# The mask is told by what has memory: 1 for the input, 2 for the weight, 4 for the bias.
GRADIENTS = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  int told = 0;
  for (int i = 0; i < 3; ++i) told += args[8 + i] != nullptr ? 1 << i : 0;
  for (int i = 0; i < 3; ++i) {
    if (args[8 + i] == nullptr) continue;
    const DLTensor& out = bringup::tensor(args[8 + i]);
    for (int64_t j = 0; j < bringup::numel(out); ++j) static_cast<T*>(out.data)[j] = told;
  }
  return 0;
}
"""

CUMSUM = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t n, const bringup_ctx*) {
  const bringup::View<const T, 1> self(args[0]);
  const bringup::View<T, 1> out(args[n > 3 ? 3 : 0]);
  T sum = 0;
  for (int64_t i = 0; i < self.size(0); ++i) sum += self(i), out(i) = sum;
  return 0;
}
"""

LAST = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const DLTensor& out = bringup::tensor(args[3]);
  for (int64_t i = 0; i < bringup::numel(out); ++i) static_cast<int64_t*>(out.data)[i] = 7;
  return 0;
}
"""

SELECT = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const DLTensor& index = bringup::tensor(args[2]);
  const DLTensor& out = bringup::tensor(args[3]);
  const T* self = static_cast<const T*>(bringup::tensor(args[0]).data);
  for (int64_t i = 0; i < bringup::numel(out); ++i) {
    static_cast<T*>(out.data)[i] = self[static_cast<const I*>(index.data)[i]];
  }
  return 0;
}
"""

Declare = Callable[..., devices.OperatorKernel]


def native_calls() -> int:
    return sum(row.calls for row in devices.fallback_report(reset=True).native)


def test_a_macro_may_be_the_dtype_of_a_list(declare: Declare) -> None:
    declare("aten::cat", CAT, "raw", dtypes={"T": "tensors"}, supports=("floating", "integral"))
    for dtype in (torch.float32, torch.int64):
        x, y = torch.arange(3, dtype=dtype, device="npu"), torch.ones(2, dtype=dtype, device="npu")
        assert torch.cat([x, y]).tolist() == [0, 1, 2, 1, 1]
    assert native_calls() == 2


def test_a_list_of_several_dtypes_falls_back(declare: Declare) -> None:
    declare("aten::cat", CAT, "raw", dtypes={"T": "tensors"}, supports=("floating", "integral"))
    x = torch.arange(3, device="npu")
    got = torch.cat([x, x.float() / 2])
    assert got.tolist() == [0, 1, 2, 0, 0.5, 1]
    assert native_calls() == 0


def test_a_list_of_several_dtypes_falls_back_behind_one_of_one_dtype(declare: Declare) -> None:
    declare("aten::cat", CAT, "raw", dtypes={"T": "tensors"}, supports=("floating", "integral"))
    x = torch.arange(3, device="npu")
    assert torch.cat([x, x]).tolist() == [0, 1, 2, 0, 1, 2]
    assert torch.cat([x, x.to(torch.int32)]).tolist() == [0, 1, 2, 0, 1, 2]
    assert torch.cat([x, x.float() / 2]).tolist() == [0, 1, 2, 0, 0.5, 1]
    assert native_calls() == 1


def test_a_list_with_a_tensor_of_the_host_is_refused(declare: Declare) -> None:
    declare("aten::cat", CAT, "raw", dtypes={"T": "tensors"})
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.cat([torch.ones(2, device="npu"), torch.ones(2)])


def test_a_result_on_top_of_an_operand_falls_back(declare: Declare) -> None:
    declare("aten::cumsum", CUMSUM, "raw", strided=("self",))
    x = torch.arange(1.0, 5, device="npu")
    assert torch.cumsum(x, 0, out=x).tolist() == [1, 3, 6, 10]
    parts = torch.ones(8, device="npu").view(4, 2)
    torch.cumsum(parts[:, 0], 0, out=parts[:, 1])  # bytes that lie between one another
    assert parts[:, 1].tolist() == [1, 2, 3, 4]
    assert native_calls() == 0
    assert x.cumsum(0).tolist() == [1, 4, 10, 20]
    assert native_calls() == 1


def test_none_and_a_number_have_results_of_their_own(declare: Declare) -> None:
    declare("aten::argmax", LAST, "raw")
    x = torch.ones(2, 3, device="npu")
    assert torch.argmax(x).tolist() == 7
    assert torch.argmax(x, -1).tolist() == [7, 7]
    assert torch.argmax(x, None).tolist() == 7


def test_a_number_of_the_host_comes_as_a_tensor(declare: Declare) -> None:
    declare("aten::index_select", SELECT, "raw", dtypes={"T": "self", "I": "index"})
    x = torch.arange(3.0, device="npu")
    assert torch.index_select(x, 0, torch.tensor(2)).tolist() == [2]


def test_a_macro_of_no_tensor_is_refused(declare: Declare) -> None:
    with pytest.raises(SchemaError, match=r"expected a tensor argument \(tensors\)"):
        declare("aten::cat", CAT, "raw", dtypes={"T": "dim"})


@pytest.mark.parametrize("mask", [[True, True, True], [True, False, False], [False, True, True]])
def test_a_gradient_that_nobody_wants_has_no_memory(declare: Declare, mask: list[bool]) -> None:
    declare("aten::native_layer_norm_backward", GRADIENTS, "raw")
    x, weight = torch.ones(2, 3, device="npu"), torch.ones(3, device="npu")
    row = torch.ones(2, 1, device="npu")
    got = torch.ops.aten.native_layer_norm_backward(x, x, [3], row, row, weight, weight, mask)
    assert [gradient is not None for gradient in got] == mask
    told = sum(1 << i for i, wanted in enumerate(mask) if wanted)
    for gradient, like in zip(got, (x, weight, weight), strict=True):
        if gradient is not None:
            assert gradient.shape == like.shape
            assert (gradient.cpu() == told).all()
    assert native_calls() == 1


def test_gradients_of_which_none_is_wanted_fall_back(declare: Declare) -> None:
    declare("aten::native_layer_norm_backward", GRADIENTS, "raw")
    x, row = torch.ones(2, 3, device="npu"), torch.ones(2, 1, device="npu")
    got = torch.ops.aten.native_layer_norm_backward(x, x, [3], row, row, None, None, [False] * 3)
    assert got == (None, None, None)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64])
def test_a_given_result_of_another_dtype_is_left_to_the_cpus_kernel(
    declare: Declare, dtype: torch.dtype
) -> None:
    declare("aten::cat", CAT, "raw", dtypes={"T": "tensors"})
    parts = [torch.tensor([1.0, 2.0], device="npu"), torch.tensor([3.0], device="npu")]
    around = torch.zeros(64, dtype=torch.uint8, device="npu")
    out = around[16 : 16 + 3 * dtype.itemsize].view(dtype)
    if dtype is torch.int64:
        with pytest.raises(TypeError, match="can't be cast"):
            torch.cat(parts, out=out)
    else:
        assert torch.cat(parts, out=out).tolist() == [1, 2, 3]
    behind = around.cpu()
    assert not behind[:16].any()
    assert not behind[16 + 3 * dtype.itemsize :].any()
    assert native_calls() == 0
