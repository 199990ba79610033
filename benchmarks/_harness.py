"""The harness: interleaved rounds, medians, a ratio to a peer measured in the same process.

Absolute times mean little on a shared machine, so a row's figure is the median over rounds of
ours / peer, where the two are timed one after the other within each round. Every candidate is run
once before timing, and garbage collection is off while a sample is taken.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from bringup import report

__all__ = ["Row", "compare", "interleave", "missing", "paired", "row"]

_MIN_SAMPLE_NS = 200_000


@dataclass(frozen=True)
class Row:
    """One figure: medians of both sides in nanoseconds per call, and the rounds' median ratio."""

    name: str
    peer: str
    ratio: float
    ours_ns: float
    peer_ns: float
    budget: float | None = None
    note: str = ""

    @property
    def within(self) -> bool | None:
        """Whether the budget is met; None when the row has none."""
        return None if self.budget is None else self.ratio <= self.budget

    def as_dict(self) -> dict[str, object]:
        """The row as JSON-able values; null for what was not measured."""
        values = {**asdict(self), "within": self.within}
        return {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in values.items()
        }


def _sample(fn: Callable[[], object], calls: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(calls):
        fn()
    return (time.perf_counter_ns() - start) / calls


def _calls_for(fn: Callable[[], object]) -> int:
    """How many calls make one sample long enough for the clock."""
    calls = 1
    while True:
        spent = _sample(fn, calls) * calls
        if spent >= _MIN_SAMPLE_NS or calls >= 1 << 20:
            return calls
        calls *= 2 if spent > _MIN_SAMPLE_NS / 8 else 8


def interleave(
    candidates: Mapping[str, Callable[[], object]], *, rounds: int = 31, calls: int | None = None
) -> dict[str, list[float]]:
    """Nanoseconds per call of every candidate, one sample per round, candidates taking turns.

    Args:
        candidates: what to time, by name.
        rounds: samples per candidate.
        calls: calls per sample; by default as many as fill 0.2 ms.
    """
    counts = {}
    for name, fn in candidates.items():
        fn()
        counts[name] = calls or _calls_for(fn)
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    enabled = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, fn in candidates.items():
                samples[name].append(_sample(fn, counts[name]))
    finally:
        if enabled:
            gc.enable()
    return samples


def row(
    name: str,
    peer: str,
    ours: list[float],
    theirs: list[float],
    *,
    budget: float | None = None,
    note: str = "",
) -> Row:
    """A row from samples of both sides taken in the same rounds."""
    ratio = report.paired_ratio(ours, theirs).median
    return Row(name, peer, ratio, statistics.median(ours), statistics.median(theirs), budget, note)


def missing(name: str, peer: str, reason: str) -> Row:
    """The row of a peer that is not here: no figures, and why."""
    return Row(name, peer, math.nan, math.nan, math.nan, note=f"not measured: {reason}")


def paired(
    name: str,
    peer: str,
    pairs: Sequence[tuple[float, float]],
    *,
    budget: float | None = None,
    note: str = "",
) -> Row:
    """A row from samples (ours, theirs) taken one after the other."""
    ours, theirs = [mine for mine, _ in pairs], [other for _, other in pairs]
    return row(name, peer, ours, theirs, budget=budget, note=note)


def compare(
    name: str,
    ours: Callable[[], object],
    peer: Callable[[], object],
    *,
    peer_name: str,
    budget: float | None = None,
    rounds: int = 31,
    calls: int | None = None,
    note: str = "",
) -> Row:
    """Times `ours` against `peer` in interleaved rounds."""
    samples = interleave({"ours": ours, "peer": peer}, rounds=rounds, calls=calls)
    return row(name, peer_name, samples["ours"], samples["peer"], budget=budget, note=note)
