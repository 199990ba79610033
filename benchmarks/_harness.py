"""The harness: interleaved rounds, medians, a ratio to a peer measured in the same process.

Absolute times mean little on a shared machine, so a row's figure is the median over rounds of
ours / peer, where the two are timed one after the other within each round. Every candidate is run
once before timing, and garbage collection is off while a sample is taken.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from bringup import report
from bringup._timing import interleaved

__all__ = ["Row", "compare", "interleave", "least", "missing", "paired", "row"]

_SAMPLE_NS = 200_000


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


def interleave(
    candidates: Mapping[str, Callable[[], object]], *, rounds: int = 31, calls: int | None = None
) -> dict[str, list[float]]:
    """Nanoseconds per call of every candidate, one sample per round, candidates taking turns.

    Args:
        candidates: what to time, by name.
        rounds: samples per candidate.
        calls: calls per sample; by default as many as fill 0.2 ms.
    """
    for call in candidates.values():
        call()
    sample_ns = _SAMPLE_NS if calls is None else 0
    taken = interleaved(candidates, sample_ns=sample_ns, count=calls or 1)
    sampled = list(itertools.islice(taken, rounds))
    return {name: [each[name] for each in sampled] for name in candidates}


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


def least(
    name: str,
    calls: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    peer: str,
    budget: float | None = None,
) -> Row:
    """A row of the least times of the calls `ours` and `peer`: what a machine that others use adds
    to both is no part of it.
    """
    samples = interleave(calls, rounds=rounds)
    ours, theirs = (min(samples[which]) for which in ("ours", "peer"))
    return Row(name, peer, ours / theirs, ours, theirs, budget)
