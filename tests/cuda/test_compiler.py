"""Models on a GPU through `backend="bringup"`, and what `bringup doctor` says beside a GPU."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn


class Block(nn.Module):
    """A norm, a gated unit and a residual, as in a Llama."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.gate, self.up = (nn.Linear(width, 4 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the gated unit of `x`."""
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))  # type: ignore[no-any-return]


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    layers = [Block(), Block(), nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)]
    return nn.Sequential(*layers).eval().cuda()


@pytest.fixture(autouse=True)
def _forget_compiled() -> object:
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("mode", ["default", "serve", "max"])
def test_every_mode_computes_what_the_model_does(model: nn.Module, mode: str) -> None:
    x = torch.randn(32, 64, device="cuda")
    with torch.no_grad():
        compiled = torch.compile(model, backend="bringup", mode=mode)
        for given in (x, x + 1, 2 * x):
            tolerance = (
                {"rtol": 3e-2, "atol": 3e-2} if mode == "max" else {"rtol": 1e-4, "atol": 1e-4}
            )
            torch.testing.assert_close(compiled(given), model(given), **tolerance)


def test_a_compiled_model_trains(model: nn.Module) -> None:
    model.train()
    x = torch.randn(16, 64, device="cuda")
    model(x).square().mean().backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    torch.compile(model, backend="bringup")(x).square().mean().backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-5)


def test_doctor_says_that_torch_is_a_build_for_cuda() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bringup", "doctor"], capture_output=True, text=True, timeout=300
    )
    assert f"built for CUDA {torch.version.cuda}" in done.stdout, done.stderr
