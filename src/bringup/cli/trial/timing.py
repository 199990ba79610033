"""Times of several ways to do one thing, taken in turns: round by round, until the ratios are known
well enough or the time is up.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from bringup._timing import Clock, interleaved
from bringup.report import Ratio, paired_ratio

_SAMPLE_NS = 1_000_000


@dataclass(frozen=True)
class Limits:
    """When rounds end.

    Attributes:
        seconds: after this time no round begins, however noisy the ratios are; the first always
            does.
        fewest: rounds that there are in any case, unless the time is up.
        tolerance: rounds end when the interval of every ratio is this near its median.
    """

    seconds: float = 10.0
    fewest: int = 11
    tolerance: float = 0.03


@dataclass
class Rounds:
    """The samples of one comparison.

    Attributes:
        taken: the whole rounds: nanoseconds of a call, by name. They stay where `take` is
            interrupted.
    """

    taken: list[dict[str, float]] = field(default_factory=list)

    def take(
        self,
        calls: Mapping[str, Callable[[], object]],
        *,
        baseline: str,
        before: Callable[[], None] | None = None,
        limits: Limits = Limits(),
        clock: Clock = time.perf_counter_ns,
    ) -> None:
        """Time calls in turns.

        A sample is one call, or as many as fill a millisecond where nothing has to be done before
        each.

        Args:
            calls: by name; each has run before.
            baseline: the name that the others are compared with.
            before: run before every call, outside of what is timed: puts a state back.
            limits: when to end.
            clock: what is looked at.
        """
        gc.collect()
        deadline = clock() + limits.seconds * 1e9
        sample_ns = 0 if before else _SAMPLE_NS
        for sampled in interleaved(calls, sample_ns=sample_ns, before=before, clock=clock):
            self.taken.append(sampled)
            if clock() >= deadline or self._is_enough(baseline, limits):
                return

    def ratio(self, numerator: str, denominator: str) -> Ratio:
        """Return how many times as long a call of the one takes as one of the other."""
        return paired_ratio(self._samples(numerator), self._samples(denominator))

    @property
    def names(self) -> frozenset[str]:
        """Return what was timed; nothing before the first round is whole."""
        return frozenset(self.taken[0]) if self.taken else frozenset()

    def milliseconds(self, name: str) -> float:
        """Return the median time of a call that was timed."""
        return statistics.median(self._samples(name)) / 1e6

    def _samples(self, name: str) -> list[float]:
        return [sampled[name] for sampled in self.taken]

    def _is_enough(self, baseline: str, limits: Limits) -> bool:
        if len(self.taken) < limits.fewest:
            return False
        others = [name for name in self.taken[0] if name != baseline]
        return all(self.ratio(baseline, name).is_narrow(limits.tolerance) for name in others)


def waiting(call: Callable[[], object], on_device: bool) -> Callable[[], object]:
    """Return a call that ends when the device has done it; `call` itself where there is none."""

    def call_and_wait() -> None:
        call()
        torch.accelerator.synchronize()

    return call_and_wait if on_device else call
