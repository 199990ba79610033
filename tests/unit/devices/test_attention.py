"""Which implementation scaled_dot_product_attention takes on the device, and what it gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"
MATH = "aten::_scaled_dot_product_attention_math"


class Operators(TorchDispatchMode):  # type: ignore[misc]
    """Names of the operators that ran."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def inputs(device: str = "npu", **options: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 4, 8, 16, **options).to(device) for _ in range(3)]


def taken(*args: Any, **kwargs: Any) -> list[str]:
    with Operators() as operators:
        scaled_dot_product_attention(*args, **kwargs)
    return operators.names


def test_the_device_takes_what_the_cpu_takes() -> None:
    assert taken(*inputs()) == taken(*inputs("cpu")) == [FLASH]
    assert FLASH not in taken(*inputs(), dropout_p=0.5)  # the CPU's has no dropout


def test_sdpa_kernel_chooses() -> None:
    with sdpa_kernel(SDPBackend.MATH):
        assert FLASH not in taken(*inputs())
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert taken(*inputs()) == [FLASH]


def test_sdpa_kernel_chooses_where_the_host_does_not_see_the_memory(
    fresh_python: Callable[..., str],
) -> None:
    code = """
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attention
from bringup import devices
assert not devices.load_driver("sim").host_visible
torch.manual_seed(0)
here = [torch.randn(2, 4, 8, 16) for _ in range(3)]
there = [x.to("npu") for x in here]
flash = "aten::_scaled_dot_product_flash_attention_for_cpu"
for choice in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
    devices.fallback_report(reset=True)
    with sdpa_kernel(choice):
        same = torch.equal(attention(*there).cpu(), attention(*here))
    print(same, any(flash in row.operator for row in devices.fallback_report().rows))
"""
    assert fresh_python(code, BRINGUP_SIM_ISOLATED="1") == "True True\nTrue False"


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_results_and_gradients_are_the_cpus(causal: bool, dtype: torch.dtype) -> None:
    found = []
    for device in ("cpu", "npu"):
        given = [x.detach().requires_grad_() for x in inputs(device, dtype=dtype)]
        result = scaled_dot_product_attention(*given, is_causal=causal)
        found.append([result, *torch.autograd.grad(result.float().square().sum(), given)])
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got.cpu(), wanted, atol=0, rtol=0)


def test_a_vendors_kernel_is_taken() -> None:
    seen = []

    def vendors(q: torch.Tensor, k: Any, v: torch.Tensor, *rest: Any, **named: Any) -> Any:
        seen.append(q.shape)
        empty = torch.empty(0, device=q.device)
        return v + 1, empty, empty, empty, q.shape[2], k.shape[2], empty, empty, empty

    name = "_scaled_dot_product_fused_attention_overrideable"
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl(name, vendors, "PrivateUse1")
        q, k, v = inputs()
        assert scaled_dot_product_attention(q, k, v).equal(v + 1)
        with sdpa_kernel(SDPBackend.MATH):
            scaled_dot_product_attention(q, k, v)
    assert seen == [q.shape]
    assert taken(q, k, v) == [FLASH]
