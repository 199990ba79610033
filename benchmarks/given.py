"""What a replay checks first: 400 parameters that the graph reads, and 400 that were frozen.

`refresh()` of a graph without frozen weights is the very check that its replays make. The peer
is the least that Python could do in its place: ask every parameter for its address and version.
"""

from __future__ import annotations

import torch
from torch import nn

from benchmarks._harness import Row, interleave, row
from bringup import graphs

PARAMETERS = 400
BUDGET_NS = 10_000


def _model() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(PARAMETERS // 2))).eval()


def _captured(call: nn.Module, x: torch.Tensor) -> graphs.CapturedGraph:
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        call(x)
    return graph


@torch.no_grad()
def run(*, quick: bool = False) -> list[Row]:
    """The rows; budgets are of time, and stand as the ratio that it makes to the peer."""
    x = torch.randn(2, 8)
    model, other = _model(), _model()
    parameters = list(model.parameters())
    plain = _captured(model, x)
    options = {"freeze": True, "passes": []}
    frozen = _captured(torch.compile(other, backend="bringup", options=options), x)
    assert frozen._content is not None
    samples = interleave(
        {
            "plain": plain.refresh,
            "frozen": frozen._content.watch.change,
            "python": lambda: [(p.data_ptr(), p._version) for p in parameters],
        },
        rounds=5 if quick else 21,
    )
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
