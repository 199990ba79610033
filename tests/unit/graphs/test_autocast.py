"""Autocast and captures: a cast of a weight is part of the graph, never a constant, and no cast
from a capture gets out of it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from tests.unit.graphs.support import captured
from torch import nn

from bringup import devices, graphs


@pytest.fixture(params=["cpu", "npu"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both devices; the cast is the same code with other keys."""
    if request.param == "npu":
        devices.load_driver("sim")
    yield request.param
    torch.clear_autocast_cache()


def settled(device: str) -> None:
    if device == "npu":
        torch.npu.synchronize()


def layer(device: str) -> nn.Linear:
    with torch.enable_grad():
        return nn.Linear(4, 4, bias=False, device=device)


def check_new_weight_is_used(
    linear: nn.Linear, graph: graphs.CapturedGraph, output: torch.Tensor, x: torch.Tensor
) -> None:
    linear.weight.copy_(torch.randn(4, 4))
    graph.replay()
    settled(x.device.type)
    with torch.autocast(x.device.type, dtype=torch.bfloat16, cache_enabled=False):
        assert torch.equal(output.cpu(), linear(x).cpu())


def test_cast_from_before_the_capture_is_no_constant(device: str) -> None:
    linear, x = layer(device), torch.randn(2, 4, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        with torch.enable_grad():
            linear(x)  # fills the cache
        graph, output = captured(linear, x)
        check_new_weight_is_used(linear, graph, output, x)


def test_cast_from_before_a_nested_autocast_is_no_constant(device: str) -> None:
    linear, x = layer(device), torch.randn(2, 4, device=device)

    def nested() -> torch.Tensor:
        with torch.autocast(device, dtype=torch.bfloat16, cache_enabled=True):
            return linear(x) + linear(x)

    with torch.autocast(device, dtype=torch.bfloat16):
        linear(x)
        graph, output = captured(nested)
    linear.weight.copy_(torch.randn(4, 4))
    graph.replay()
    settled(device)
    assert torch.equal(output.cpu(), nested().cpu())


def test_cast_from_the_capture_does_not_reach_later_eager_code(device: str) -> None:
    linear, x = layer(device), torch.randn(2, 4, device=device)
    with torch.autocast(device, dtype=torch.bfloat16, cache_enabled=True):
        graph, _ = captured(lambda: linear(x) * 1)
        old = linear.weight.clone()
        linear.weight.copy_(torch.randn(4, 4))
        got = linear(x)
        graph.replay()
        settled(device)
        assert not torch.equal(old, linear.weight)
        with torch.autocast(device, dtype=torch.bfloat16, cache_enabled=False):
            assert torch.equal(got.cpu(), linear(x).cpu())


def test_cast_that_another_thread_made_during_the_capture_is_no_constant() -> None:
    linear, x = layer("cpu"), torch.randn(2, 4)

    def elsewhere() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            linear(x)
            cast.set()
            captured_all.wait(timeout=240)

    cast, captured_all = threading.Event(), threading.Event()

    def model() -> torch.Tensor:
        thread.start()
        assert cast.wait(timeout=240)
        return linear(x)

    thread = threading.Thread(target=elsewhere)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        graph, output = captured(model)
        captured_all.set()
        thread.join()
        check_new_weight_is_used(linear, graph, output, x)


def test_the_callers_cache_switch_is_as_it_was(device: str) -> None:
    linear, x = layer(device), torch.randn(2, 4, device=device)
    for enabled in (True, False):
        with torch.autocast(device, dtype=torch.bfloat16, cache_enabled=enabled):
            captured(linear, x)
            assert torch.is_autocast_cache_enabled() is enabled


def test_vmap_under_autocast_takes_no_cast_from_before() -> None:
    linear, x = layer("cpu"), torch.randn(3, 2, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        linear(x[0])
        graph, output = captured(lambda: torch.vmap(linear)(x))
        linear.weight.copy_(torch.randn(4, 4))
        graph.replay()
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
            assert torch.equal(output, torch.vmap(linear)(x))
