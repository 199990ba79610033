"""Modules that move to the device and back keep their parameters, as on torch's own devices."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("npu")


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.words(words))
        return nn.functional.cross_entropy(scores, words)


def _trained(model: _Tied, steps: torch.optim.Optimizer, device: str) -> torch.Tensor:
    for _ in range(3):
        steps.zero_grad()
        model(torch.arange(7, device=device)).backward()
        steps.step()
    return model.words.weight.detach().cpu()


def test_tied_parameters_stay_tied_and_an_optimizer_goes_on_with_them() -> None:
    torch.manual_seed(0)
    model = _Tied()
    there = copy.deepcopy(model)
    steps = torch.optim.SGD(there.parameters(), lr=0.5, momentum=0.9)
    weight = there.words.weight
    there.to("npu")
    assert there.words.weight is there.head.weight is weight
    assert weight.device.type == "npu"
    want = _trained(model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9), "cpu")
    torch.testing.assert_close(_trained(there, steps, "npu"), want)
    there.cpu()
    assert there.head.weight is weight
    assert weight.is_cpu


def test_gradients_and_accumulators_move_with_parameters() -> None:
    linear = nn.Linear(3, 2)
    linear(torch.ones(1, 3)).sum().backward()
    linear.to("npu")
    assert linear.weight.grad is not None
    assert linear.weight.grad.device.type == "npu"
    linear(torch.ones(1, 3, device="npu")).sum().backward()
    assert linear.weight.grad.eq(2).all()


def test_memory_of_other_kinds_becomes_no_device_tensor() -> None:
    x = torch.ones(2)
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        x.data = torch.eye(2).to_sparse().to("npu")
    y = torch.ones(2, device="npu")
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        y.data = torch.ones(2, device="meta")
