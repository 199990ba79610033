"""Programs for the sweep of captured graphs: a model drawn from a few blocks, its inputs, and what
it keeps from call to call.
"""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor, nn

from bringup import graphs

__all__ = ["ROWS", "WIDTH", "Cache", "Noise", "Program", "Scaled", "draw_model"]

WIDTH = 8
ROWS = 3


class Scaled(nn.Module):
    """A parameter, a buffer and a plain tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.randn(WIDTH))
        self.register_buffer("shift", torch.randn(WIDTH))
        self.mask = (torch.rand(WIDTH) > 0.3).float()
        self.power = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain * self.mask + self.shift * self.power


class Cache(nn.Module):
    """A buffer that every call writes at a position, and reads whole."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(5, WIDTH))
        self.register_buffer("position", torch.tensor([2]))

    def forward(self, x: Tensor) -> Tensor:
        self.keys.index_copy_(0, self.position, x[:1])
        return torch.softmax(x @ self.keys.t(), -1) @ self.keys


class Views(nn.Module):
    """Views of an input and of a weight, and a write through a view."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Parameter(torch.randn(2, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = x.t().reshape(WIDTH, -1).t().clone()
        y[:, : WIDTH // 2].add_(self.both[0, WIDTH // 2 :])
        return y * self.both[1]


class Folded(nn.Module):
    """A weight of which freezing computes another one."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.table * 2)


class InPlace(nn.Module):
    """Operators in place on a result."""

    def forward(self, x: Tensor) -> Tensor:
        return (x + 1).mul_(0.5).relu_().sub_(0.1)


class Counter(nn.Module):
    """A buffer that counts calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x + self.calls


class Noise(nn.Module):
    """Random numbers from the default generator, and from one of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(5)

    def forward(self, x: Tensor) -> Tensor:
        own = torch.rand(x.shape, generator=self.generator)
        return nn.functional.dropout(x + own, 0.5) + torch.randn_like(x)


_BLOCKS = (
    lambda: nn.Linear(WIDTH, WIDTH),
    lambda: nn.Linear(WIDTH, WIDTH, bias=False),
    lambda: nn.LayerNorm(WIDTH),
    lambda: nn.GELU(),
    lambda: nn.Dropout(0.2),
    Scaled,
    Cache,
    Views,
    Folded,
    InPlace,
    Counter,
    Noise,
)


class _Network(nn.Module):
    """An embedding of tokens plus an input, then the blocks."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, WIDTH)
        self.blocks = nn.ModuleList(blocks)

    def forward(self, tokens: Tensor, x: Tensor) -> Tensor:
        y = self.embed(tokens) + x
        for block in self.blocks:
            y = block(y)
        return y


def draw_model(random: Random) -> nn.Module:
    """A network of one to six blocks in evaluation mode."""
    torch.manual_seed(random.randrange(1 << 30))
    blocks = [random.choice(_BLOCKS)() for _ in range(random.randint(1, 6))]
    return _Network(blocks).eval()


class Program:
    """A model, its inputs, and tensors that it reaches through a list."""

    def __init__(self, random: Random, *, frozen: bool = False) -> None:
        self.model = draw_model(random)
        self.frozen = frozen
        """Whether what is captured is a compiled function that folded the weights."""
        options = {"freeze": True, "on_weight_change": "refold", "passes": []}
        self._call = (
            torch.compile(self.model, backend="bringup", options=options) if frozen else self.model
        )
        self.tokens = torch.tensor([random.randrange(11) for _ in range(ROWS)])
        self.x = torch.randn(ROWS, WIDTH)
        self.extras = [torch.randn(WIDTH)]
        self.graph: graphs.CapturedGraph = graphs.CapturedGraph()
        self.output: Tensor | None = None

    def run(self) -> Tensor:
        """One call of what is captured, as the user's code makes it."""
        return self._call(self.tokens, self.x) * self.extras[0]

    def expected(self) -> Tensor:
        """The same by the model alone."""
        return self.model(self.tokens, self.x) * self.extras[0]

    def state(self) -> list[Tensor]:
        """Every tensor that a call may write."""
        return list(self.model.buffers())

    def generators(self) -> list[torch.Generator]:
        """Every generator that a call may draw from."""
        own = [module.generator for _, module in self.modules_with("generator")]
        return [torch.default_generator, *own]

    def modules_with(self, key: str) -> list[tuple[str, nn.Module]]:
        """Modules that hold a parameter, buffer or attribute of this name."""
        return [
            (name, module)
            for name, module in self.model.named_modules()
            if getattr(module, key, None) is not None
        ]
