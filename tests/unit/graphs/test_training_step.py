"""A whole step of training in one graph: forward, backward and the optimizer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from bringup import devices, graphs
from bringup.errors import CaptureError

Make = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, tuple[Make, list[str]]] = {
    "sgd": (lambda p: torch.optim.SGD(p, lr=0.1), ["cpu", "npu"]),
    "momentum": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), ["cpu", "npu"]),
    "rmsprop": (lambda p: torch.optim.RMSprop(p, lr=0.01), ["cpu", "npu"]),
    "adam": (lambda p: torch.optim.Adam(p, lr=0.01, capturable=True), ["npu"]),
    "adamw": (lambda p: torch.optim.AdamW(p, lr=0.01, capturable=True, foreach=True), ["npu"]),
}
ROWS = [(name, device) for name, (_, places) in OPTIMIZERS.items() for device in places]


@pytest.fixture(autouse=True)
def _with_gradients(_without_gradients: None) -> Iterator[None]:
    devices.load_driver("sim")
    with torch.enable_grad():
        yield


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


@pytest.mark.parametrize(("name", "device"), ROWS)
def test_replays_train_as_eager_does(name: str, device: str) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 2)).to(device)
    twin = copy.deepcopy(model)
    ours, theirs = (OPTIMIZERS[name][0](m.parameters()) for m in (model, twin))
    x = torch.randn(3, 4, device=device)
    for net, optimizer in ((model, ours), (twin, theirs)):
        step(net, optimizer, x)  # makes the optimizer's state
        optimizer.zero_grad()
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        loss = step(model, ours, x)
    for _ in range(5):
        fresh = torch.randn(3, 4, device=device)
        x.copy_(fresh)
        graph.replay()
        theirs.zero_grad()
        expected = step(twin, theirs, fresh)
        torch.testing.assert_close(loss.detach(), expected.detach())
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, other)
        torch.testing.assert_close(mine.grad, other.grad)


def test_gradients_from_before_are_added_to() -> None:
    layer, x = nn.Linear(2, 1, bias=False), torch.ones(1, 2)
    layer(x).sum().backward()
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        layer(x).sum().backward()
    assert layer.weight.grad.tolist() == [[1, 1]]
    for n in (2, 3):
        graph.replay()
        assert layer.weight.grad.tolist() == [[n, n]]


def test_backward_outside_raises_after_a_replay() -> None:
    x = torch.ones(2, requires_grad=True)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        y = (x * x).exp()
    graph.replay()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("name", ["momentum", "rmsprop"])
def test_the_first_step_of_an_optimizer_is_refused(name: str) -> None:
    layer, x = nn.Linear(2, 2), torch.ones(1, 2)
    optimizer = OPTIMIZERS[name][0](layer.parameters())
    before = copy.deepcopy(layer.state_dict())
    graph, words = graphs.CapturedGraph(), r"made new state.*Take a step before the capture"
    with pytest.raises(CaptureError, match=words), graphs.capture(graph):
        step(layer, optimizer, x)
    assert not optimizer.state
    for key, value in layer.state_dict().items():
        assert torch.equal(value, before[key])


def test_recomputed_activations_are_captured_with_their_random_numbers() -> None:
    x, weight = torch.randn(64, device="npu"), torch.ones(64, device="npu", requires_grad=True)

    def block(weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout((x * weight).tanh(), 0.5) * 3

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        y = checkpoint(block, weight, use_reentrant=False)
        (gradient,) = torch.autograd.grad(y.sum(), weight)
        return y.detach(), gradient

    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        result = step()
    for seed in (1, 2):
        torch.npu.manual_seed(seed)  # type: ignore[attr-defined]
        expected = step()
        torch.npu.manual_seed(seed)  # type: ignore[attr-defined]
        graph.replay()
        for mine, other in zip(result, expected, strict=True):
            torch.testing.assert_close(mine, other)
        assert 10 < int((result[1] == 0).sum()) < 54
