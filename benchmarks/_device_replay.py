"""Rows: replays of 1,000 small operators that a driver's device itself runs."""

from __future__ import annotations

import torch

from benchmarks._harness import Row, least
from bringup import graphs


@torch.no_grad()
def replay_rows(device: str, rounds: int) -> list[Row]:
    """Level 2, where runs of operators are kernels, against eager and level 1."""
    x = torch.randn(1, 16).to(device)
    wait = getattr(torch, device).synchronize

    def eager() -> torch.Tensor:
        y = x
        for _ in range(250):
            y = torch.relu((y + x) * 0.9) - x
        return y

    captured = {}
    for level in (1, 2):
        captured[level] = graphs.CapturedGraph(optimize=level)
        with graphs.capture(captured[level]):
            eager()
        captured[level].wait_for_functions()

    def waited(call: object) -> object:
        return lambda: (call(), wait())  # type: ignore[operator]

    name = f"replay of 1,000 operators of 1 x 16 on {device}, level 2"
    ours = waited(captured[2].replay)
    rows = []
    for peer, call in (("eager", eager), ("level 1", captured[1].replay)):
        rows.append(least(name, {"ours": ours, "peer": waited(call)}, rounds, peer=peer))
    return rows
