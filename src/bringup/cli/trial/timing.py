"""Times of several ways to do one thing, in rounds until ratios are known or time is up."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic

import torch

from bringup._timing import Clock, Name, interleaved
from bringup.report import Ratio, paired_ratio

_SAMPLE_NS = 1_000_000
_ALIKE = 0.1


@dataclass(frozen=True)
class Limits:
    """When rounds end: after `seconds` (the first always runs), or when the interval of every ratio
    is within `tolerance` of its median, after the `fewest` rounds.
    """

    seconds: float = 10.0
    fewest: int = 11
    tolerance: float = 0.03


@dataclass
class Rounds(Generic[Name]):
    """The samples of all comparisons: nanoseconds of a call by name, for the whole rounds. `group`
    names what is compared; of a group with several names the sum counts.
    """

    taken: list[dict[Name, float]] = field(default_factory=list)
    group: Callable[[Name], str] = str

    def take(
        self,
        calls: Mapping[Name, Callable[[], object]],
        *,
        baseline: str,
        before: Callable[[], None] | None = None,
        limits: Limits = Limits(),
        clock: Clock = time.perf_counter_ns,
    ) -> None:
        """Time calls in turns; each has run before.

        A sample is one call, or as many as fill a millisecond where nothing has to be done `before`
        each, untimed. Other groups are compared with `baseline`.
        """
        gc.collect()
        deadline = clock() + limits.seconds * 1e9
        sample_ns = 0 if before else _SAMPLE_NS
        groups = dict.fromkeys(map(self.group, calls))
        for sampled in interleaved(calls, sample_ns=sample_ns, before=before, clock=clock):
            self.taken.append(sampled)
            if clock() >= deadline or self._is_enough(baseline, groups, limits):
                return

    def ratio(self, numerator: str, denominator: str) -> Ratio:
        both = self._samples(numerator, denominator)
        return paired_ratio([one for one, _ in both], [other for _, other in both])

    def has(self, *groups: str) -> bool:
        return bool(self._samples(*groups))

    def milliseconds(self, group: str) -> float:
        return statistics.median(time for (time,) in self._samples(group)) / 1e6

    def _samples(self, *groups: str) -> list[list[float]]:
        found = []
        for sampled in self.taken:
            totals: dict[str, float] = {}
            for name, nanoseconds in sampled.items():
                of = self.group(name)
                totals[of] = totals.get(of, 0.0) + nanoseconds
            if totals.keys() >= set(groups):
                found.append([totals[group] for group in groups])
        return found

    def _is_enough(self, baseline: str, groups: Iterable[str], limits: Limits) -> bool:
        ratios = [self.ratio(baseline, group) for group in groups]
        return all(
            ratio.rounds >= limits.fewest and ratio.is_narrow(limits.tolerance) for ratio in ratios
        )


def warmed(
    call: Callable[[], object],
    *,
    before: Callable[[], None] | None = None,
    seconds: float,
    clock: Clock = time.perf_counter_ns,
) -> float:
    """Call until two times agree within 10 %, for at most `seconds`; return the last, in ms."""
    deadline, last = clock() + seconds * 1e9, math.inf
    for sampled in interleaved({"": call}, before=before, clock=clock):
        last, previous = sampled[""], last
        if abs(last - previous) <= _ALIKE * last or clock() >= deadline:
            break
    return last / 1e6


def waiting(call: Callable[[], object], on_device: bool) -> Callable[[], object]:
    """Return a call that ends when the device has done it; `call` itself where there is none."""

    def call_and_wait() -> None:
        call()
        torch.accelerator.synchronize()

    return call_and_wait if on_device else call
