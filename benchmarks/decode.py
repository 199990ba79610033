"""One decode step of a Llama of 12 small layers, captured on cpu, against the step run eagerly.

The step appends one token to caches of fixed length: the position is a tensor, so every replay may
have another. Weights are random; what is measured is the cost around small operators.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks._harness import Row, interleave, row
from bringup import graphs

LAYERS, WIDTH, HEADS, PAIRS, HIDDEN, LENGTH, WORDS = 12, 64, 4, 2, 172, 64, 512


class Layer(nn.Module):
    """Attention with grouped heads over a cache, and a gated unit, each after an RMS norm."""

    def __init__(self) -> None:
        super().__init__()
        self.size = WIDTH // HEADS
        self.before, self.between = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, PAIRS * self.size, bias=False)
        self.value = nn.Linear(WIDTH, PAIRS * self.size, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)
        self.keys = nn.Buffer(torch.zeros(1, PAIRS, LENGTH, self.size))
        self.values = nn.Buffer(torch.zeros(1, PAIRS, LENGTH, self.size))

    def forward(self, x: Tensor, at: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        y = self.before(x)
        query = _rotated(self.query(y).view(1, 1, HEADS, self.size).transpose(1, 2), turn)
        key = _rotated(self.key(y).view(1, 1, PAIRS, self.size).transpose(1, 2), turn)
        self.keys.index_copy_(2, at, key)
        self.values.index_copy_(2, at, self.value(y).view(1, 1, PAIRS, self.size).transpose(1, 2))
        seen = functional.scaled_dot_product_attention(
            query, self.keys, self.values, attn_mask=mask, enable_gqa=True
        )
        x = x + self.out(seen.transpose(1, 2).reshape(1, 1, WIDTH))
        y = self.between(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def _rotated(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = turn
    left, right = x.chunk(2, -1)
    return x * cosine + torch.cat((-right, left), -1) * sine


class Decoder(nn.Module):
    """Embedding, layers, logits; `token` and `at` are tensors of one integer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        half = WIDTH // HEADS // 2
        self.speeds = nn.Buffer(10000.0 ** (-torch.arange(half) / half))
        self.places = nn.Buffer(torch.arange(LENGTH))

    def forward(self, token: Tensor, at: Tensor) -> Tensor:
        angles = (at * self.speeds).repeat(2)
        turn = (angles.cos(), angles.sin())
        mask = (self.places <= at).unsqueeze(0)
        x = self.words(token).unsqueeze(0)
        for layer in self.layers:
            x = layer(x, at, turn, mask)
        return functional.linear(self.norm(x), self.words.weight)


@torch.no_grad()
def run(*, quick: bool = False) -> list[Row]:
    """The row; one intra-op thread, as the step's operators are too small for more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        torch.manual_seed(0)
        model = Decoder().eval()
        token, at = torch.tensor([3]), torch.tensor([5])
        graph = graphs.CapturedGraph()
        with graphs.capture(graph):
            logits = model(token, at)
        for place in range(6, 9):
            at.fill_(place)
            expected = model(token, at)
            graph.replay()
            torch.testing.assert_close(logits, expected)
        samples = interleave(
            {"replay": graph.replay, "eager": lambda: model(token, at)},
            rounds=5 if quick else 31,
        )
        note = f"{len(graph.nodes)} nodes"
        return [
            row(
                "decode step, 12 layers",
                "eager",
                samples["replay"],
                samples["eager"],
                budget=0.2,
                note=note,
            )
        ]
    finally:
        torch.set_num_threads(threads)
