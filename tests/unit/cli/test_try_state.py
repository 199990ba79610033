"""What a model changes is found by name, and put back."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from bringup.cli.trial.model_state import State


@dataclass
class Cache:
    keys: torch.Tensor | None
    length: int = 0


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.BatchNorm1d(2)
        self.history: Any = deque([1, 2], maxlen=2)
        self.names = {"a": [torch.zeros(2)]}


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda m, c: m.inner.running_mean.add_(1), "model.inner.running_mean"),
        (lambda m, c: m.inner.running_mean.data.add_(1), "model.inner.running_mean"),
        (lambda m, c: m.history.append(3), "model.history"),
        (lambda m, c: m.names["a"][0].fill_(7), "model.names['a'][0]"),
        (lambda m, c: m.names.update(b=1), "model.names['b']"),
        (lambda m, c: m.names.pop("a"), "model.names['a']"),
        (lambda m, c: setattr(m, "new", 1), "model.new"),
        (lambda m, c: setattr(c, "length", 5), "cache.length"),
        (lambda m, c: setattr(c, "keys", torch.ones(3)), "cache.keys"),
        (lambda m, c: c.keys.resize_(5), "cache.keys"),
        (lambda m, c: torch.rand(1), "torch's random numbers"),
    ],
)
def test_change_is_named_and_put_back(change: Any, path: str) -> None:
    model, cache = Model(), Cache(torch.zeros(2))
    random = torch.get_rng_state()
    state = State(model=model, cache=cache)
    assert state.changes() == []
    change(model, cache)
    assert state.changes() == [path]
    state.restore()
    assert state.changes() == []
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(model.inner.running_mean, torch.zeros(2))
    assert (cache.keys.tolist(), cache.length) == ([0.0, 0.0], 0)  # type: ignore[union-attr]
    assert list(model.history) == [1, 2]


def test_written_parameter_is_named_as_lasting() -> None:
    model = Model()
    state = State(model=model)
    with torch.no_grad():
        model.inner.weight.add_(1)
    assert state.changes() == state.lasting == ["model.inner.weight"]


def test_equal_numbers_and_cycles_are_no_change() -> None:
    first: list[Any] = [1.5, "text"]
    first.append(first)
    state = State(root=first)
    first[0] = float("1.5")
    assert state.changes() == []


def test_nan_that_stays_is_no_change() -> None:
    assert State(x=torch.tensor([float("nan"), 1.0])).changes() == []
