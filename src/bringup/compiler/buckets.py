"""Padded lengths: a ladder of buckets with the least padding, and the bucket of a length."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bringup.errors import ContractError

__all__ = ["bucket_for", "bucket_ladder"]


def bucket_ladder(
    lengths: Mapping[int, int] | Iterable[int], count: int, *, multiple_of: int = 1
) -> tuple[int, ...]:
    """The buckets that pad lengths like these least: at most `count` sizes, rising, of which the
    last holds the longest. Every length is padded up to the first bucket that holds it.

    Args:
        lengths: how often each length comes, or the lengths themselves (0 takes the first bucket).
        count: of buckets, from 1.
        multiple_of: sizes are multiples of it.

    Returns:
        Sizes for which the sum of padding over all lengths is the least there is (dynamic
        programming over the cut positions, exact; quadratic in the number of distinct sizes).
        Fewer than `count` where more would save nothing.

    Raises:
        ContractError: there is no length above 0, a length or a number of times is negative, or
            `count` or `multiple_of` is less than 1.
    """
    if count < 1 or multiple_of < 1:
        raise ContractError(
            f"bucket_ladder: count and multiple_of begin at 1, got {count} and {multiple_of}"
        )
    times = Counter(dict(lengths) if isinstance(lengths, Mapping) else lengths)
    wrong = [length for length, often in times.items() if length < 0 or often < 0]
    if wrong:
        raise ContractError(f"bucket_ladder: length {wrong[0]} comes {times[wrong[0]]} times")
    rounded: Counter[int] = Counter()
    for length, often in times.items():
        if length and often:
            rounded[-(-length // multiple_of) * multiple_of] += often
    if not rounded:
        raise ContractError("bucket_ladder: there is no length above 0")
    sizes = sorted(rounded)
    return _least_padding(sizes, [rounded[size] for size in sizes], count)


def bucket_for(length: int, ladder: Sequence[int]) -> int | None:
    """The first bucket of a rising ladder that holds `length`; None where none does."""
    index = bisect.bisect_left(ladder, length)
    return ladder[index] if index < len(ladder) else None


def _least_padding(sizes: Sequence[int], often: Sequence[int], count: int) -> tuple[int, ...]:
    """Which of the sizes are buckets: an optimal ladder has no others."""
    size = np.array(sizes, dtype=np.int64)
    number = np.concatenate(([0], np.cumsum(np.array(often, dtype=np.int64))))
    # the padded rows of sizes [0, j] in one bucket; what they hold is the same for every ladder
    best = size * number[1:]
    cuts: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
    for _ in range(min(count, len(sizes)) - 1):
        # sizes [0, i] in former buckets, (i, j] in one of size j; i = j adds no bucket
        first = np.empty(len(sizes), dtype=np.int64)
        total = np.empty_like(best)
        for j in range(len(sizes)):
            costs = best[: j + 1] + size[j] * (number[j + 1] - number[1 : j + 2])
            first[j] = j - int(np.argmin(costs[::-1]))  # of equal ones the last: no bucket for it
            total[j] = costs[first[j]]
        cuts.append(first)
        best = total
    ladder, j = [sizes[-1]], len(sizes) - 1
    for first in reversed(cuts):
        if first[j] != j:
            j = int(first[j])
            ladder.append(sizes[j])
    return tuple(reversed(ladder))
