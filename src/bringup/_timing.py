"""Times of several ways to do one thing, taken in turns, so that a disturbance hits all of them."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import TypeVar

from bringup._garbage_collection import collector_paused

Clock = Callable[[], int]
"""Nanoseconds since some moment."""
Name = TypeVar("Name", bound=Hashable)

_MOST_CALLS = 1 << 20
_NEAR = 8  # a sample this much shorter than wanted says well how many calls it takes


def interleaved(
    calls: Mapping[Name, Callable[[], object]],
    *,
    sample_ns: int = 0,
    count: int = 1,
    before: Callable[[], None] | None = None,
    clock: Clock = time.perf_counter_ns,
) -> Iterator[dict[Name, float]]:
    """Yield rounds without an end: the nanoseconds of each of `calls`, which have run before. A
    sample is as many as fill `sample_ns`, or for 0 `count`; `before` runs ahead of it, untimed,
    and every round begins with another. No garbage is collected until the iterator is closed.
    """
    counts = dict.fromkeys(calls, count)
    if sample_ns:
        counts = {name: _calls_for(call, sample_ns, clock) for name, call in calls.items()}
    names = list(calls)
    with collector_paused():
        while True:
            sampled = {}
            for name in names:
                if before is not None:
                    before()
                sampled[name] = _sample(calls[name], counts[name], clock)
            yield sampled
            names.append(names.pop(0))


def _sample(call: Callable[[], object], count: int, clock: Clock) -> float:
    turns = itertools.repeat(None, count)
    start = clock()
    for _ in turns:
        call()
    return max(clock() - start, 1) / count


def _calls_for(call: Callable[[], object], sample_ns: int, clock: Clock) -> int:
    """Return how many calls fill a sample, by the fastest of three samples of fewer."""
    count = 1
    while True:
        first = _sample(call, count, clock)
        if first >= _NEAR * sample_ns:
            return 1
        fastest = min(first, *(_sample(call, count, clock) for _ in range(2)))
        needed = min(max(1, math.ceil(sample_ns / fastest)), _MOST_CALLS)
        if needed <= _NEAR * count:
            return needed
        count = needed
