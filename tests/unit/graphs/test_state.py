"""Nothing happened until replay: what a capture restores, and the memory that a graph holds."""

from __future__ import annotations

import gc

import psutil
import pytest
import torch
from tests.unit.graphs.support import captured
from torch import nn

from bringup import graphs


def test_tensors_that_the_run_changed_are_restored_and_replay_changes_them() -> None:
    cache, x = torch.zeros(4), torch.ones(2)

    def step() -> torch.Tensor:
        cache[1:3].add_(x)
        return cache.sum()

    graph, total = captured(step)
    assert cache.tolist() == [0, 0, 0, 0]
    graph.replay()
    graph.replay()
    assert cache.tolist() == [0, 2, 2, 0]
    assert total.item() == 4


def test_running_statistics_are_restored() -> None:
    norm, x = nn.BatchNorm1d(3).train(), torch.randn(8, 3)
    expected = nn.BatchNorm1d(3).train()
    expected(x)
    graph, _ = captured(norm, x)
    assert norm.running_mean.tolist() == [0, 0, 0]
    graph.replay()
    assert torch.equal(norm.running_mean, expected.running_mean)
    assert torch.equal(norm.running_var, expected.running_var)


def test_random_state_is_restored_and_replay_draws_in_order() -> None:
    torch.manual_seed(7)
    expected = [torch.rand(3) for _ in range(3)]
    torch.manual_seed(7)
    graph, output = captured(lambda: torch.rand(3))
    for values in expected:
        graph.replay()
        assert torch.equal(output, values)


def test_given_generator_is_restored_and_used() -> None:
    generator = torch.Generator().manual_seed(3)
    expected = torch.empty(5).uniform_(generator=torch.Generator().manual_seed(3))
    graph, output = captured(lambda: torch.empty(5).uniform_(generator=generator))
    graph.replay()
    assert torch.equal(output, expected)


def test_exception_in_the_block_propagates_and_leaves_no_trace() -> None:
    x, graph = torch.zeros(3), graphs.CapturedGraph()
    state = torch.get_rng_state()

    def fails() -> None:
        with graphs.capture(graph):
            x.add_(torch.rand(3))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fails()
    assert x.tolist() == [0, 0, 0]
    assert torch.equal(torch.get_rng_state(), state)
    assert repr(graph) == "CapturedGraph(empty)"
    assert "tolist" not in torch.Tensor.__dict__
    with graphs.capture(graph):
        x.add_(1)
    graph.replay()
    assert x.tolist() == [1, 1, 1]


def test_operator_that_fails_in_the_block_can_be_caught() -> None:
    x = torch.ones(2, 3)

    def model() -> torch.Tensor:
        try:
            return x @ x
        except RuntimeError:
            return x @ x.t()

    graph, output = captured(model)
    x.fill_(2)
    graph.replay()
    assert output.tolist() == [[12, 12], [12, 12]]


def test_results_hold_the_runs_values_until_the_first_replay() -> None:
    x = torch.ones(3)
    graph, output = captured(lambda: x + 1)
    x.fill_(10)
    assert output.tolist() == [2, 2, 2]
    graph.replay()
    assert output.tolist() == [11, 11, 11]


def test_deep_chain_reuses_memory() -> None:
    x = torch.ones(1000)

    def chain() -> torch.Tensor:
        y = x
        for _ in range(200):
            y = torch.relu(y) + 1
        return y

    graph, output = captured(chain)
    assert graph.memory_bytes <= 4 * x.nbytes
    graph.replay()
    assert output[0].item() == 201


def test_outputs_outlive_the_graph() -> None:
    graph, output = captured(lambda: torch.arange(1000.0) * 2)
    del graph
    gc.collect()
    _, other = captured(lambda: torch.ones(1000) * 3)
    assert torch.equal(output, torch.arange(1000.0) * 2)
    assert other.sum().item() == 3000


def test_a_thousand_replays_and_a_hundred_captures_leak_nothing() -> None:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU()), torch.randn(64, 64)
    graph, _ = captured(model, x)

    def work() -> None:
        for _ in range(1000):
            graph.replay()
        for _ in range(100):
            captured(model, x)

    def growth() -> int:
        gc.collect()
        before = psutil.Process().memory_info().rss
        work()
        gc.collect()
        return psutil.Process().memory_info().rss - before

    work()
    assert any(growth() < 4 << 20 for _ in range(3))  # a leak grows every time


def test_convolutions_free_their_scratch_memory_by_address() -> None:
    convolution, x = nn.Conv2d(8, 8, 3, padding=1), torch.randn(1, 8, 32, 32)
    graph, output = captured(lambda: convolution(convolution(x)))
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        graph.replay()
        assert torch.allclose(output, convolution(convolution(x)), atol=1e-6)
