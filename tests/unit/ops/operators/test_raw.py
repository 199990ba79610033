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
