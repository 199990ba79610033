"""`ops.check` is green for every operator that bringup ships, also on the simulated device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bringup import devices, kernels, ops

kernels.load()
WITHOUT_KERNEL = {"bringup::pack_weight", "bringup::pack_weight_int8", "bringup::pack_weight_mkl"}
CHECKED_APART = {"bringup::mkl_linear"}  # takes no copies of its arguments: test_mkl_linear
# Backward operators made of torch's: test_gradients
COMPOSITE = {
    name
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith("bringup::")
    and torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
}
SHIPPED = sorted(
    {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("bringup::")}
    - WITHOUT_KERNEL
    - CHECKED_APART
    - COMPOSITE
)


@pytest.fixture(scope="module", autouse=True)
def _driver() -> None:
    devices.load_driver("sim")


def _quantised() -> list[tuple[Any, ...]]:
    a, b = torch.randint(-9, 9, (2, 3), dtype=torch.int8), torch.ones(3, 4, dtype=torch.int8)
    return [(a, b, torch.tensor([0.5])), (a, b, torch.ones(4), torch.ones(2), torch.ones(4))]


def _scaled(*batch: int, b: tuple[int, ...] = (), ends: tuple[int, ...] = ()) -> Any:
    """With scales of blocks, and with a byte's format and without scales."""

    def samples() -> list[tuple[Any, ...]]:
        a = torch.randint(-9, 9, (*batch, 4, 6), dtype=torch.int8)
        groups = [torch.tensor(ends)] if ends else []
        right = torch.randint(0, 100, (*(b or batch), 6, 3), dtype=torch.uint8)
        of_a, of_b = torch.rand(1, 4, 1), torch.rand(1, 1, 2).half()
        scaled = (of_a, of_b, torch.rand(3), [1, 1, 6, 2], "plain", "float8_e4m3fn", torch.float16)
        return [
            (a, right, *groups, *scaled),
            (a, right.to(torch.int8), *groups),
        ]

    return samples


# Where a kernel checks more than a contract can say.
SAMPLES: dict[str, Any] = {
    "bringup::scaled_matmul": _scaled(),
    "bringup::scaled_batched_matmul": _scaled(2),
    "bringup::scaled_grouped_matmul": _scaled(b=(2,), ends=(1, 4)),
    "bringup::scaled_grouped_matmul_slice_k": _scaled(ends=(2, 6)),
    "bringup::quant_matmul": _quantised,
    "bringup::grouped_matmul": [
        (torch.randn(5, 3), torch.randn(2, 3, 4), torch.tensor([2, 5])),
    ],
    "bringup::grouped_matmul_slice_k": [
        (torch.randn(3, 5), torch.randn(5, 4), torch.tensor([2, 5])),
    ],
    "bringup::rotary": [
        (torch.randn(2, 3, 4, 6), torch.randn(1, 1, 4, 6), torch.randn(4, 6)[None, None])
    ],
    "bringup::packed_linear": [
        (torch.randn(4, 6), kernels.pack_weight(torch.randn(20, 6)), torch.randn(20), 12),
        (torch.randn(4, 6), kernels.pack_weight(torch.randn(16, 6))),
    ],
    "bringup::nz_matmul": [(torch.randn(4, 5), torch.randn(5, 3), 4, 3, 5)],
}


@pytest.mark.parametrize("name", SHIPPED)
def test_every_check_passes_for_the_shipped_operator(name: str) -> None:
    report = ops.check(name, SAMPLES.get(name)).require()
    applied = {row.name for row in report.rows if row.outcome is ops.CheckOutcome.PASS}
    assert {"schema", "fake", "compile", "hidden writes", "fast and slow", "cpu and npu"} <= applied
