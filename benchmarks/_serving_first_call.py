"""The first call of a compiled model in a new process: compiling, packing, capturing."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks._harness import Row, paired

__all__ = ["first_call_rows"]

_CALL = """
import sys, time, torch
from benchmarks._modes import compiled, scope_of
from benchmarks._serving_models import bert
mode, model, ids = sys.argv[1], bert(), torch.randint(0, 30000, (8, 32))
given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
with torch.no_grad(), scope_of(mode):
    model(**given)
    start = time.perf_counter_ns()
    function = compiled(model, mode)
    function(**given)
    print(time.perf_counter_ns() - start)
"""
_BUDGETS = {"cold": 0.5, "warm": 1.0}
_ROUNDS = 3


def first_call_rows() -> list[Row]:
    """BERT 8 x 32: with empty caches, and with those that the call before has left."""
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in _BUDGETS}
    for _ in range(_ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            for name in _BUDGETS:
                ours, theirs = (_nanoseconds(mode, Path(folder)) for mode in ("serve", "inductor"))
                pairs[name].append((ours, theirs))
    return [
        paired(
            f"BERT 8 x 32, first call, {name} caches, serve",
            "Inductor, freezing",
            pairs[name],
            budget=budget,
        )
        for name, budget in _BUDGETS.items()
    ]


def _nanoseconds(mode: str, folder: Path) -> float:
    caches = {
        "BRINGUP_CACHE_DIR": str(folder / "bringup"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }
    done = subprocess.run(
        [sys.executable, "-c", _CALL, mode],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **caches},
    )
    return float(done.stdout.split()[-1])
