"""Models of one class in random turns, with weights that are written, replaced, loaded, swapped and
models that are built anew: results are eager's, and an error names a weight that was changed.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import torch
from tests.sweeps.support import FULL, part
from torch import nn

import bringup.compiler  # noqa: F401 - makes the backend known
from bringup.errors import ContractError

MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "serve": {"mode": "serve"},
    "raise": {"options": {"freeze": True}},
    "raise_captured": {"options": {"freeze": True, "capture": True}},
    "refold": {"options": {"freeze": True, "on_weight_change": "refold"}},
}
CASES = [(mode, seed) for seed in range(60 if FULL else 16) for mode in MODES]
LISTED = [("raise", 1000), ("default", 1001)]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)
        self.register_buffer("scale", torch.rand(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu()) * self.scale


def write(model: Net) -> None:
    model.first.weight.mul_(0.5)


def replace(model: Net) -> None:
    model.second.bias = nn.Parameter(torch.randn(4))


def load(model: Net) -> None:
    model.load_state_dict(Net().state_dict())


def swap(model: Net) -> None:
    torch.utils.swap_tensors(model.first.bias, nn.Parameter(torch.randn(8)))


def exchange_buffer(model: Net) -> None:
    model.scale = torch.rand(4)


CHANGES = (write, replace, load, exchange_buffer, swap)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize(("mode", "seed"), part(CASES, LISTED))
def test_every_model_computes_with_its_own_weights(
    mode: str, seed: int, sweep_counts: Counter[str]
) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    models = [Net().eval() for _ in range(3)]
    compiled = [torch.compile(model, backend="bringup", **MODES[mode]) for model in models]
    changed = [False] * 3
    called = [False] * 3
    # a graph that was captured holds its weights
    changes = CHANGES if mode != "raise_captured" else CHANGES[:-1]
    with torch.no_grad():
        for _ in range(24):
            index = draw.randrange(3)
            if draw.random() < 0.15:
                draw.choice(changes)(models[index])
                changed[index] = called[index]
            elif draw.random() < 0.1:
                models[index] = Net().eval()
                compiled[index] = torch.compile(models[index], backend="bringup", **MODES[mode])
                changed[index] = called[index] = False
            else:
                x = torch.randn(2, 4)
                sweep_counts["calls"] += 1
                called[index] = True
                if changed[index] and mode.startswith("raise"):
                    with pytest.raises(ContractError, match="was frozen into the compiled graph"):
                        compiled[index](x)
                else:
                    torch.testing.assert_close(compiled[index](x), models[index](x))
