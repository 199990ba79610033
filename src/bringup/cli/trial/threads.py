"""How many threads everything that is timed has."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from bringup._timing import interleaved

_PROBE_SECONDS = 0.3
FEWEST_ROUNDS = 5


@contextmanager
def thread_count(wanted: int | None) -> Iterator[str]:
    """Set torch's threads in this block; where `wanted` leaves it open, 1 where a probe shows that
    more are slower. Yields what is to be said of that.
    """
    before = torch.get_num_threads()
    ratio = 0.0 if wanted or before == 1 else slowdown(before)
    torch.set_num_threads(wanted or (1 if ratio > 1 else before))
    words = ""
    if ratio > 1:
        words = (
            f"One thread: with {before}, which wait for each other here, a matrix product takes "
            f"{ratio:.1f} times as long (--threads {before} keeps them)."
        )
    try:
        yield words
    finally:
        torch.set_num_threads(before)


def slowdown(threads: int) -> float:
    """Return products' time with so many threads over that with 1; torch's number changes."""
    left, right = torch.ones(256, 1536), torch.ones(1536, 256)

    def product(count: int) -> Callable[[], None]:
        def call() -> None:
            torch.set_num_threads(count)
            torch.mm(left, right)

        return call

    calls = {count: product(count) for count in (1, threads)}
    for call in calls.values():
        call()
    taken: list[dict[int, float]] = []
    deadline = time.perf_counter() + _PROBE_SECONDS
    for sampled in interleaved(calls):
        taken.append(sampled)
        if len(taken) >= FEWEST_ROUNDS and time.perf_counter() >= deadline:
            break
    # No median: on busy processors most products are quick, and a few wait a hundred times as long.
    return sum(one[threads] for one in taken) / sum(one[1] for one in taken)
