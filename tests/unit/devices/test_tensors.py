"""Tensors of the device: factories, copies, views, in-place operators, autograd."""

from __future__ import annotations

import copy

import pytest
import torch


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (4, 5, 6)])
def test_factories_give_what_cpu_gives(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    for factory in (torch.zeros, torch.ones):
        made = factory(shape, dtype=dtype, device="npu")
        assert made.device == torch.device("npu", 0)
        assert torch.equal(made.cpu(), factory(shape, dtype=dtype))


def test_model_forward_and_backward_equal_cpu() -> None:
    torch.manual_seed(0)
    on_cpu = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 4)
    )
    on_npu = copy.deepcopy(on_cpu).to("npu")
    x = torch.randn(3, 8)
    expected, got = on_cpu(x), on_npu(x.to("npu"))
    assert got.device.type == "npu"
    torch.testing.assert_close(got.cpu(), expected)
    expected.square().sum().backward()
    got.square().sum().backward()
    for ours, theirs in zip(on_npu.parameters(), on_cpu.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t,
        lambda t: t.t(),
        lambda t: t[1:, ::2],
        lambda t: t[:, 1].unsqueeze(1),
        lambda t: t.unsqueeze(0).expand(3, -1, -1),
        lambda t: t.reshape(-1)[3:],
        lambda t: t[:0],
    ],
    ids=["whole", "transposed", "strided", "column", "expanded", "offset", "empty"],
)
def test_copies_of_any_layout_carry_the_values(view) -> None:  # type: ignore[no-untyped-def]
    base = torch.arange(24.0).reshape(4, 6)
    there = base.to("npu")
    assert torch.equal(view(there).cpu(), view(base))
    assert torch.equal(view(there).clone().cpu(), view(base))
    assert torch.equal(view(base).to("npu").cpu(), view(base))
    assert torch.equal(view(there).to(torch.int32).cpu(), view(base).to(torch.int32))


def test_in_place_operator_returns_its_tensor_and_writes_through_views() -> None:
    x = torch.zeros(3, 4, device="npu")
    row = x[1]
    assert row.add_(2) is row
    assert torch.equal(x.cpu().sum(1), torch.tensor([0.0, 8.0, 0.0]))
