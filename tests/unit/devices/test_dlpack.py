"""DLPack on the device: both ways, by tensor and by capsule."""

from __future__ import annotations

import pytest
import torch
from torch.utils.dlpack import DLDeviceType, from_dlpack, to_dlpack


@pytest.mark.parametrize("index", [0, 1])
def test_a_tensor_says_where_it_lies(index: int) -> None:
    x = torch.ones(2, device=f"npu:{index}")
    assert x.__dlpack_device__() == (DLDeviceType.kDLExtDev, index)
    assert torch.ones(2).__dlpack_device__() == (DLDeviceType.kDLCPU, 0)
    assert torch.nn.Parameter(x).__dlpack_device__() == (DLDeviceType.kDLExtDev, index)


@pytest.mark.parametrize(
    "x",
    [torch.arange(6.0), torch.arange(6.0).view(2, 3).t(), torch.arange(9)[::2], torch.ones(())],
    ids=["", "transposed", "strided", "scalar"],
)
def test_memory_is_shared(x: torch.Tensor) -> None:
    on_device = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="npu").copy_(x)
    for given in (torch.from_dlpack(on_device), from_dlpack(to_dlpack(on_device))):
        assert given.device == on_device.device
        assert (given.shape, given.stride(), given.dtype) == (x.shape, x.stride(), x.dtype)
        assert given.cpu().equal(on_device.cpu())
        given.add_(1)
        assert given.cpu().equal(on_device.cpu())


def test_memory_outlives_the_tensor_that_gave_it() -> None:
    x = torch.arange(1000.0, device="npu")
    given = torch.from_dlpack(x)
    del x
    [torch.full((1000,), -1.0, device="npu") for _ in range(10)]
    assert given.cpu().equal(torch.arange(1000.0))


def test_what_needs_a_gradient_is_refused() -> None:
    with pytest.raises(BufferError, match="require gradient"):
        torch.from_dlpack(torch.ones(2, device="npu", requires_grad=True))


def test_a_subclass_with_an_opinion_is_asked() -> None:
    class Opinion(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if func is torch.Tensor.__dlpack_device__:
                return "asked"
            return super().__torch_function__(func, types, args, kwargs or {})

    x = torch.ones(2, device="npu").as_subclass(Opinion)
    assert x.__dlpack_device__() == "asked"
