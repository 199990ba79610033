"""Reductions: dims, layouts, empty tensors, written results. The oracle is torch on cpu."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.ops.operators import kernels

from bringup import devices

Declare = Callable[..., devices.OperatorKernel]


@pytest.fixture(scope="module")
def total() -> Iterator[devices.OperatorKernel]:
    kernel = devices.kernel("aten::sum", source=kernels.source(kernels.SUM), kind="reduction",
                          supports=("floating", "integral"))  # fmt: skip
    yield kernel
    kernel.close()


@st.composite
def reductions(draw: st.DrawFn) -> tuple[torch.Tensor, list[int], bool]:
    """A permuted tensor, some of its dims, keepdim."""
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.int32, torch.int64]))
    x = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    x = x.permute(draw(st.permutations(range(len(shape)))))
    dims = draw(st.lists(st.sampled_from(range(len(shape))), unique=True)) if shape else []
    return x, [d - draw(st.sampled_from([0, len(shape)])) for d in dims], draw(st.booleans())


@given(reductions())
@settings(max_examples=60, deadline=None)
def test_any_dims_are_summed_as_on_cpu(
    total: devices.OperatorKernel, case: tuple[torch.Tensor, list[int], bool]
) -> None:
    x, dims, keepdim = case
    expected = torch.sum(x, dims, keepdim=keepdim)
    there = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="npu").copy_(x)
    got = torch.sum(there, dims, keepdim=keepdim)
    assert (got.dtype, got.shape, got.stride()) == (
        expected.dtype,
        expected.shape,
        expected.stride(),
    )
    torch.testing.assert_close(got.cpu(), expected)


def test_a_dtype_that_is_asked_for_is_computed_in(total: devices.OperatorKernel) -> None:
    x = torch.full((1000,), 0.1, dtype=torch.float16, device="npu")
    got = x.sum(dtype=torch.float64)
    assert got.dtype is torch.float64
    torch.testing.assert_close(got.cpu(), x.cpu().sum(dtype=torch.float64))


def test_a_given_result_is_strided(total: devices.OperatorKernel) -> None:
    x = torch.arange(12.0, device="npu").reshape(3, 4)
    out = torch.zeros(3, 2, device="npu")
    torch.sum(x, 1, out=out[:, 1])
    assert out.tolist() == [[0, 6], [0, 22], [0, 38]]


def test_wrong_dims_are_refused_as_on_cpu(total: devices.OperatorKernel) -> None:
    x = torch.ones(2, 3, device="npu")
    torch.sum(x, 0)
    with pytest.raises(IndexError, match="Dimension out of range"):
        torch.sum(x, 2)
    with pytest.raises(RuntimeError, match="appears multiple times"):
        torch.sum(x, [0, -2])


def test_what_has_no_elements_to_choose_from_is_refused_each_time(declare: Declare) -> None:
    declare("aten::argmax", kernels.ARGMAX, kind="reduction")
    torch.argmax(torch.ones(2, 3, device="npu"), 1)  # the plan is known from here on
    with pytest.raises(IndexError, match="Expected reduction dim 1 to have non-zero size"):
        torch.argmax(torch.ones(2, 0, device="npu"), 1)


def test_large_reductions_are_cut_into_blocks(total: devices.OperatorKernel) -> None:
    x = torch.arange(400_000.0, dtype=torch.float64).reshape(1000, 400)
    assert torch.equal(x.to("npu").sum(1).cpu(), x.sum(1))
    assert torch.equal(x.to("npu").sum(0).cpu(), x.sum(0))
