"""Captures of a thousand shapes and two functions: what is kept stays in its limit, and right."""

from __future__ import annotations

import random

import pytest
import torch
from tests.sweeps.support import FULL
from torch import Tensor

from bringup import compiler, devices
from bringup.compiler import captured_calls

LIMIT = 1 << 20
SHAPES = 1000 if FULL else 40


def body(x: Tensor) -> Tensor:
    return (((x + 1) * 2 - x).relu() * 3).cumsum(0)


@pytest.mark.parametrize(("device", "is_shared"), [("cpu", False), ("cpu", True), ("npu", True)])
@torch.no_grad()
def test_memory_stays_within_the_limit_and_results_are_right(
    device: str, is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices.load_driver("sim")
    monkeypatch.setenv("BRINGUP_CAPTURE_MEMORY", str(LIMIT))
    runs = [
        captured_calls.captured(
            lambda given, power=power: [body(given[0]) ** power],
            "f",
            frozenset(),
            2 * SHAPES,
            shared_memory=is_shared,
        )
        for power in (2, 3)
    ]
    order = list(range(1, SHAPES + 1))
    random.Random(0).shuffle(order)
    order += order[-20:] + order[:20]  # what is kept, and what made room
    kept = []  # results of any path, which later ones must not touch
    for step, rows in enumerate(order):
        x, power = torch.randn(rows, 32).to(device), 2 + step % 2
        (result,) = runs[power - 2]([x])
        assert torch.equal(result, body(x) ** power)
        if rows % 100 == 1:
            kept.append((result, x, power))
        first, second = compiler.captures()[-2:]
        shared = max(first.shared_bytes, second.shared_bytes)
        assert first.memory_bytes + second.memory_bytes + shared <= 1.05 * LIMIT
    assert first.uncaptured == second.uncaptured == 0
    assert not FULL or first.dropped > 100
    for result, x, power in kept:
        assert torch.equal(result, body(x) ** power)
