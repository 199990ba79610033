"""Activation checkpointing: the recomputation draws the random numbers of the forward."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

SIZE = 64


def model(device: str) -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(SIZE, SIZE),
        torch.nn.Dropout(0.5),
        torch.nn.GELU(),
        torch.nn.Linear(SIZE, SIZE),
        torch.nn.Dropout(0.3),
    ).to(device)


def gradients(device: str, reentrant: bool | None) -> list[torch.Tensor]:
    """Of a model with dropout whose forward is checkpointed, or not at all for None."""
    net = model(device)
    x = torch.linspace(-2, 2, 8 * SIZE).reshape(8, SIZE).to(device).requires_grad_()
    torch.npu.manual_seed_all(7)
    torch.manual_seed(7)
    y = net(x) if reentrant is None else checkpoint(net, x, use_reentrant=reentrant)
    torch.rand(100, device=device)  # what the forward drew is not what comes next
    (y * y).sum().backward()
    return [x.grad, *(p.grad for p in net.parameters())]  # type: ignore[list-item]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("device", ["cpu", "npu", "npu:1"])
def test_checkpoint_with_dropout_has_the_gradients_of_no_checkpoint(
    device: str, reentrant: bool
) -> None:
    for got, wanted in zip(gradients(device, reentrant), gradients(device, None), strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_sequential_restores_the_random_state_of_each_segment(reentrant: bool) -> None:
    def run(segments: int) -> torch.Tensor:  # the last segment is never checkpointed
        net = model("npu")
        x = torch.ones(8, SIZE, device="npu", requires_grad=True)
        torch.npu.manual_seed(3)
        y = checkpoint_sequential(net, segments, x, use_reentrant=reentrant)
        y.square().sum().backward()
        assert x.grad is not None
        return x.grad

    assert torch.equal(run(2), run(1))


def test_checkpoint_leaves_the_random_state_after_the_backward_where_it_was() -> None:
    net = model("npu")
    x = torch.ones(4, SIZE, device="npu", requires_grad=True)
    y = checkpoint(net, x, use_reentrant=False)
    before = torch.npu.get_rng_state()
    y.sum().backward()
    assert torch.equal(torch.npu.get_rng_state(), before)


@pytest.mark.parametrize("backend", ["aot_eager", "aot_eager_decomp_partition", "bringup"])
@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_compiled_checkpoint_with_dropout_recomputes_with_the_masks_of_its_forward(
    device: str, backend: str
) -> None:
    weight = torch.eye(SIZE, device=device, requires_grad=True)

    def block(x: torch.Tensor) -> torch.Tensor:
        return torch.dropout(x @ weight, 0.5, True).square()

    @torch.compile(backend=backend, fullgraph=True)
    def run(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, use_reentrant=False)

    torch._dynamo.reset()
    x = torch.ones(8, SIZE, device=device, requires_grad=True)
    for _ in range(2):
        weight.grad = x.grad = None
        y = run(x)
        y.sum().backward()
        assert x.grad is not None
        assert 0.3 < (y == 0).float().mean().item() < 0.7
        assert torch.equal(x.grad, 2 * y)  # y = (2 x m)^2 where the mask m is 0 or 1
