"""`tensor_ptr` and `alloc_like`. Includes the cases of mindtorch_v2's
test_custom_kernel.py.
"""

from __future__ import annotations

import ctypes

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from bringup import ops
from bringup.errors import ContractError


@pytest.mark.parametrize("shape", [(6,), (2, 3), (2, 3, 4), ()])
def test_alloc_like_is_contiguous(shape: tuple[int, ...]) -> None:
    """One, two, three dimensions and a scalar."""
    given = torch.zeros(shape, dtype=torch.int16)
    got = ops.alloc_like(given)
    assert got.shape == given.shape
    assert got.dtype == given.dtype
    assert got.stride() == given.stride()


def test_alloc_like_is_contiguous_for_strided_and_expanded_tensors() -> None:
    assert ops.alloc_like(torch.zeros(3, 4).t()).stride() == (3, 1)
    assert ops.alloc_like(torch.zeros(1).expand(5)).stride() == (1,)


def test_alloc_like_needs_no_gradient() -> None:
    assert not ops.alloc_like(torch.zeros(3, requires_grad=True)).requires_grad


def test_tensor_ptr_is_the_address() -> None:
    x = torch.arange(4, dtype=torch.int32)
    address = ops.tensor_ptr(x)
    assert isinstance(address, int)
    assert address != 0
    assert list((ctypes.c_int32 * 4).from_address(address)) == [0, 1, 2, 3]


def test_tensor_ptr_honours_the_storage_offset() -> None:
    """mindtorch_v2's does not."""
    x = torch.arange(4, dtype=torch.int32)
    assert ops.tensor_ptr(x[2:]) == ops.tensor_ptr(x) + 8
    assert ctypes.c_int32.from_address(ops.tensor_ptr(x[2:])).value == 2


def test_tensor_ptr_of_a_tensor_without_elements_is_harmless() -> None:
    assert ops.tensor_ptr(torch.empty(0)) == 0


def test_tensor_ptr_refuses_a_meta_tensor() -> None:
    with pytest.raises(ContractError, match=r"a meta tensor of shape \[3\] has no memory"):
        ops.tensor_ptr(torch.empty(3, device="meta"))


def test_tensor_ptr_refuses_a_fake_tensor() -> None:
    with FakeTensorMode():
        fake = torch.empty(3)
    with pytest.raises(ContractError, match=r"a fake tensor of shape \[3\] has no memory"):
        ops.tensor_ptr(fake)


def test_tensor_ptr_refuses_freed_memory() -> None:
    x = torch.zeros(4)
    y = x[1:]
    x.untyped_storage().resize_(0)
    with pytest.raises(ContractError, match=r"shape \[3\] was freed: its storage holds 0 bytes"):
        ops.tensor_ptr(y)


def test_tensor_ptr_refuses_shrunk_memory() -> None:
    x = torch.zeros(4)
    x.untyped_storage().resize_(8)
    with pytest.raises(ContractError, match=r"holds 8 bytes, the tensor needs 16"):
        ops.tensor_ptr(x)


def test_tensor_ptr_refuses_a_sparse_tensor() -> None:
    with pytest.raises(ContractError, match=r"layout torch.sparse_coo has no single address"):
        ops.tensor_ptr(torch.zeros(3).to_sparse())


def test_tensor_ptr_refuses_a_conjugated_view() -> None:
    with pytest.raises(ContractError, match=r"conjugated, negated.*resolve_conj\(\)"):
        ops.tensor_ptr(torch.zeros(3, dtype=torch.complex64).conj())


def test_tensor_ptr_refuses_tensors_inside_vmap() -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        ops.tensor_ptr(x)
        return x

    with pytest.raises(ContractError, match=r"has no address .*inside vmap.*call an operator"):
        torch.func.vmap(body)(torch.zeros(2, 3))


def test_tensor_ptr_refuses_what_is_no_tensor() -> None:
    with pytest.raises(TypeError, match=r"expected a torch.Tensor, got int \(3\)"):
        ops.tensor_ptr(3)  # type: ignore[arg-type]
