"""Runs the native passes of the pass path over a small model and compares the results."""

import torch
from torch import nn

from bringup import compiler


class Model(nn.Module):
    """Has something for every pass of the example."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8))

    def forward(self, x):
        x = torch.relu(torch.relu(x @ self.weight + self.bias))
        x = nn.functional.silu(x) * 0.5 + torch.ones_like(x)
        return nn.functional.hardswish(torch.neg(torch.neg(x)) * x + self.bias)


@torch.no_grad()
def main() -> None:
    """Compile, run, print what the passes did, and compare the results before and after."""
    model, x = Model().eval(), torch.randn(4, 8)
    compiled = torch.compile(model, backend="bringup")
    after, before = compiled(x), model(x)
    for name, count in compiler.last_report().matches.items():
        if not name.startswith("Library"):  # those that bringup ships
            print(f"{name}: {count}")
    print(f"greatest difference {(after - before).abs().max().item():.1e}")
    torch.testing.assert_close(after, before)


if __name__ == "__main__":
    main()
