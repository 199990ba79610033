"""What a replay checks first: 400 parameters that the graph reads, and 400 that were frozen.

`refresh()` of a graph without frozen weights is the very check that its replays make. With frozen
weights it reads them all, so there the figure is a replay of one small operator on a constant that
400 weights were folded into, less the replay of the same operator alone. The peer is the least that
Python could do in its place: ask every parameter for its address and version.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from benchmarks._harness import Row, interleave, row
from bringup import graphs

PARAMETERS = 400
BUDGET_NS = 10_000


def _model() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(PARAMETERS // 2))).eval()


class _Folded(nn.Module):
    """Adds one number that depends on every weight of a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.stack([p.sum() for p in self.model.parameters()]).sum()


def _captured(
    call: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
) -> graphs.CapturedGraph:
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        call(x)
    return graph


@torch.no_grad()
def run(*, quick: bool = False) -> list[Row]:
    """The rows; budgets are of time, and stand as the ratio that it makes to the peer."""
    x = torch.randn(2, 8)
    model = _model()
    parameters = list(model.parameters())
    plain, number = _captured(model, x), torch.ones(())
    options = {"freeze": True, "passes": []}
    folded = torch.compile(_Folded(_model()), backend="bringup", options=options)
    frozen, alone = _captured(folded, x), _captured(lambda x: x + number, x)
    assert len(frozen.nodes) == len(alone.nodes)
    samples = interleave(
        {
            "plain": plain.refresh,
            "replay": frozen.replay,
            "alone": alone.replay,
            "python": lambda: [(p.data_ptr(), p._version) for p in parameters],
        },
        rounds=5 if quick else 21,
    )
    pairs = zip(samples["replay"], samples["alone"], strict=True)
    samples["frozen"] = [replay - without for replay, without in pairs]
    return [
        row(
            f"check, {PARAMETERS} {what}",
            "Python loop",
            samples[name],
            samples["python"],
            note=f"{sorted(samples[name])[len(samples[name]) // 2] / 1000:.2f} us, budget "
            f"{BUDGET_NS / 1000:.0f} us",
        )
        for name, what in (("plain", "parameters"), ("frozen", "frozen weights"))
    ]
