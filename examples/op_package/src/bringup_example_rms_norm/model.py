"""A model with the operator: a residual block that normalizes before its two layers."""

from __future__ import annotations

import torch

from bringup_example_rms_norm import rms_norm

__all__ = ["Block", "RMSNorm"]


class RMSNorm(torch.nn.Module):
    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = rms_norm(x, self.weight, self.eps)
        return result


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = RMSNorm(width)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x + self.layers(self.norm(x))
        return result
