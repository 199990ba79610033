"""Interleaved times: turns, samples and the garbage collector, by a clock that calls move."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable

import pytest

from bringup._timing import interleaved


class Clock:
    """Nanoseconds; each call moves it."""

    def __init__(self) -> None:
        self.now = 0
        self.log: list[str] = []

    def __call__(self) -> int:
        return self.now

    def call(self, name: str, nanoseconds: int) -> Callable[[], None]:
        def run() -> None:
            self.log.append(name)
            self.now += nanoseconds

        return run


def test_every_round_times_each_call_and_begins_with_another() -> None:
    clock = Clock()
    calls = {name: clock.call(name, 10 * number) for number, name in enumerate("abc", start=1)}
    taken = list(itertools.islice(interleaved(calls, clock=clock), 4))
    assert taken == [{"a": 10.0, "b": 20.0, "c": 30.0}] * 4
    assert "".join(clock.log) == "abc" + "bca" + "cab" + "abc"


@pytest.mark.parametrize(("nanoseconds", "calls"), [(1, 1000), (300, 4), (999, 2), (1000, 1)])
def test_a_sample_has_as_many_calls_as_fill_it(nanoseconds: int, calls: int) -> None:
    clock = Clock()
    rounds = interleaved(
        {"a": clock.call("a", nanoseconds)},
        sample_ns=1000,
        before=lambda: clock.log.clear(),
        clock=clock,
    )
    assert next(rounds) == {"a": float(nanoseconds)}
    assert len(clock.log) == calls


def test_a_call_far_longer_than_a_sample_is_tried_once_and_is_the_sample() -> None:
    clock = Clock()
    next(interleaved({"a": clock.call("a", 8000)}, sample_ns=1000, clock=clock))
    assert len(clock.log) == 2


def test_a_call_that_takes_no_time_ends_the_search_for_its_number() -> None:
    clock = Clock()
    assert next(interleaved({"a": clock.call("a", 0)}, sample_ns=64, clock=clock))["a"] <= 1


def test_a_fixed_number_of_calls_is_divided_out() -> None:
    clock = Clock()
    assert next(interleaved({"a": clock.call("a", 7)}, count=5, clock=clock)) == {"a": 7.0}
    assert clock.log == ["a"] * 5


def test_nothing_is_collected_until_the_rounds_are_dropped_or_a_call_fails() -> None:
    seen: list[bool] = []
    rounds = interleaved({"a": lambda: seen.append(gc.isenabled())})
    next(rounds)
    assert (seen, gc.isenabled()) == ([False], False)
    del rounds
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        next(interleaved({"a": lambda: 1 // 0}))
    assert gc.isenabled()
