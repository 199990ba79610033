"""How many times one thing takes as long as another, by rounds of both: median, interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

_CONFIDENCE = 0.95
_ALIKE = 1.05


class Judgement(Enum):
    """What an interval says about a ratio: of the time of the one to that of the other."""

    MORE = "more"
    LESS = "less"
    ALIKE = "alike"
    TOO_NOISY = "too noisy to say"


@dataclass(frozen=True)
class Ratio:
    """A median of ratios, one ratio a round.

    Attributes:
        median: of the rounds' ratios; NaN without a round.
        low, high: an interval that holds the true median with a confidence of at least 95 %,
            whatever the distribution is; 0 and infinity where there are too few rounds for one.
        rounds: how many there were.
    """

    median: float
    low: float
    high: float
    rounds: int

    def is_narrow(self, tolerance: float) -> bool:
        """Return whether both ends are within the part `tolerance`, e.g. 0.05, of the median."""
        if not math.isfinite(self.high):
            return False
        return max(self.high - self.median, self.median - self.low) <= tolerance * self.median

    @property
    def judgement(self) -> Judgement:
        """Alike where the whole interval is within 5 % of 1; more or less where 1 is not in it."""
        if self.low >= 1 / _ALIKE and self.high <= _ALIKE:
            return Judgement.ALIKE
        if self.low > 1:
            return Judgement.MORE
        return Judgement.LESS if self.high < 1 else Judgement.TOO_NOISY


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Return the ratio of two series of times of the same rounds, in the same order.

    The interval is between order statistics of the rounds' ratios, by the binomial distribution of
    how many of them are below the median (Conover, Practical Nonparametric Statistics, 3.2): it
    exists from 6 rounds on. It takes the rounds as independent, so a load that lasts for many
    rounds is worth less than their number says.

    Args:
        numerators: seconds, one for each round.
        denominators: seconds, of the same rounds.

    Raises:
        ValueError: the series differ in length.
    """
    ratios = sorted(a / b for a, b in zip(numerators, denominators, strict=True))
    if not ratios:
        return Ratio(math.nan, 0.0, math.inf, 0)
    outside = _ranks_outside(len(ratios))
    low, high = (ratios[outside - 1], ratios[-outside]) if outside else (0.0, math.inf)
    return Ratio(statistics.median(ratios), low, high, len(ratios))


def _ranks_outside(count: int) -> int:
    """Return the largest k for which the k-th smallest and largest enclose the median, or 0."""
    below, k = 0, 0
    while 2 * (below + math.comb(count, k)) <= (1 - _CONFIDENCE) * 2**count:
        below += math.comb(count, k)
        k += 1
    return k
