"""Interleaved rounds, by a clock that only the timed calls move."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle

import pytest
import torch

from bringup.cli.trial import threads
from bringup.cli.trial.run import Line, Trial
from bringup.cli.trial.timing import Limits, Rounds, warmed
from bringup.cli.trial.verdict import recommended_code, spread, verdict
from bringup.report import Judgement, Ratio, paired_ratio

MS = 1_000_000


class Clock:
    """Nanoseconds; each call that is made by `call` takes the next of its times."""

    def __init__(self) -> None:
        self.now = 0
        self.log: list[str] = []

    def __call__(self) -> int:
        return self.now

    def call(self, name: str, milliseconds: Sequence[float]) -> Callable[[], None]:
        times: Iterator[float] = cycle(milliseconds)

        def run() -> None:
            self.log.append(name)
            self.now += int(next(times) * MS)

        return run


def rounds_of(clock: Clock, limits: Limits, **times: Sequence[float]) -> Rounds[str]:
    rounds = Rounds[str]()
    calls = {name: clock.call(name, values) for name, values in times.items()}
    rounds.take(calls, baseline="eager", limits=limits, clock=clock)
    return rounds


def test_steady_calls_end_at_the_fewest_rounds_with_the_ratio_known() -> None:
    rounds = rounds_of(Clock(), Limits(fewest=11), eager=[4.0], fused=[2.0])
    ratio = rounds.ratio("eager", "fused")
    assert (ratio.median, ratio.low, ratio.high, ratio.rounds) == (2.0, 2.0, 2.0, 11)
    assert rounds.milliseconds("fused") == 2.0


def test_noisy_calls_go_on_until_the_interval_is_narrow() -> None:
    noisy = [3.8, 4.0, 4.2, 4.1, 3.9, 9.0, 4.0]
    rounds = rounds_of(Clock(), Limits(fewest=11, tolerance=0.02), eager=noisy, fused=[2.0])
    ratio = rounds.ratio("eager", "fused")
    assert ratio.rounds > 11
    assert ratio.is_narrow(0.02)
    shorter = rounds.taken[:-1]
    before = paired_ratio([r["eager"] for r in shorter], [r["fused"] for r in shorter])
    assert not before.is_narrow(0.02)


def test_calls_too_noisy_to_say_end_when_the_time_is_up() -> None:
    clock = Clock()
    rounds = rounds_of(clock, Limits(seconds=2.0), eager=[1, 90, 3, 40, 2], fused=[50, 2, 1, 60])
    ratio = rounds.ratio("eager", "fused")
    assert ratio.judgement is Judgement.TOO_NOISY
    assert 2000 * MS <= clock.now < 2200 * MS
    assert spread(ratio) == "too noisy to say"


def test_one_round_is_taken_even_where_no_time_is_left() -> None:
    rounds = rounds_of(Clock(), Limits(seconds=0.0), eager=[700.0], fused=[800.0])
    assert len(rounds.taken) == 1
    assert spread(rounds.ratio("eager", "fused")) == "too few rounds to say (1)"


def test_every_round_begins_with_another_call() -> None:
    clock = Clock()
    rounds_of(clock, Limits(), eager=[2.0], fused=[2.0])
    in_rounds = clock.log[6:]  # three calls of each find out how many make a sample
    assert in_rounds[:6] == ["eager", "fused", "fused", "eager", "eager", "fused"]


def test_short_calls_are_repeated_until_a_sample_is_a_millisecond() -> None:
    clock = Clock()
    rounds = rounds_of(clock, Limits(), eager=[0.25], fused=[2.0])
    assert clock.log[6:11] == ["eager"] * 4 + ["fused"]
    assert rounds.milliseconds("eager") == 0.25


def test_state_is_put_back_before_every_call_and_outside_of_its_time() -> None:
    clock, rounds = Clock(), Rounds[str]()

    def put_back() -> None:
        clock.log.append("put back")
        clock.now += 1000 * MS

    calls = {"eager": clock.call("eager", [0.1]), "fused": clock.call("fused", [0.2])}
    rounds.take(calls, baseline="eager", before=put_back, clock=clock)
    assert clock.log[:4] == ["put back", "eager", "put back", "fused"]
    assert rounds.ratio("fused", "eager").median == pytest.approx(2.0)


def test_interrupted_round_leaves_the_whole_ones() -> None:
    clock, rounds, calls_left = Clock(), Rounds(), [9]
    eager = clock.call("eager", [2.0])

    def fused() -> None:
        calls_left[0] -= 1
        if calls_left[0] == 0:
            raise KeyboardInterrupt
        clock.now += 1 * MS

    with pytest.raises(KeyboardInterrupt):
        rounds.take({"eager": eager, "fused": fused}, baseline="eager", clock=clock)
    assert len(rounds.taken) == 5
    assert rounds.ratio("eager", "fused").median == 2.0


def line(mode: str, low: float, high: float, **fields: object) -> Line:
    given = {"ms": 1.0, "max_abs_diff": 0.0, **fields}
    return Line(mode, speedup=Ratio((low + high) / 2, low, high, 15), **given)  # type: ignore[arg-type]


def trial(*lines: Line, **fields: object) -> Trial:
    tolerances = {"tolerance": 1e-3, "narrow_tolerance": 2e-2}
    return Trial("model", 2, lines=list(lines), **tolerances, **fields)  # type: ignore[arg-type]


FAST, SAME, NOISY = (1.3, 1.5), (0.98, 1.02), (0.6, 1.9)


@pytest.mark.parametrize(
    ("tried", "sentence"),
    [
        (
            trial(line("default", *FAST), line("serve", 2.0, 2.2)),
            "serve is 2.10x (2.00 to 2.20) as fast as eager; outputs agree within 0.0e+00.",
        ),
        (
            trial(
                line("default", *FAST, speedup_vs_inductor=Ratio(0.8, 0.7, 0.9, 15)),
                Line("serve", reason="CaptureError: no"),
            ),
            "default is 1.40x (1.30 to 1.50) as fast as eager, and 0.80x (0.70 to 0.90) as fast as "
            "Inductor; outputs agree within 0.0e+00.",
        ),
        (
            trial(line("default", *SAME), line("serve", 0.4, 0.5)),
            "bringup does not make this model faster than eager: default 1.00x (0.98 to 1.02), "
            "serve 0.45x (0.40 to 0.50).",
        ),
        (
            trial(line("default", *NOISY), line("serve", *SAME)),
            "Too noisy to say of default: give it more time with --seconds, or less load.",
        ),
        (
            trial(line("default", *FAST, max_abs_diff=0.5), line("serve", *FAST)),
            "Do not use default: its output is 5.0e-01 from eager.",
        ),
        (
            trial(Line("default", reason="A: b"), Line("serve", reason="C: d")),
            "bringup does nothing for this model: default: A: b; serve: C: d.",
        ),
        (
            trial(line("default", *SAME), line("serve", 6.5, 75.0)),
            "serve is at least 6.50x as fast as eager; outputs agree within 0.0e+00.",
        ),
        (
            trial(line("serve", *FAST), line("max", 1.4, 1.6, max_abs_diff=1e-2)),
            "serve is 1.40x (1.30 to 1.50) as fast as eager; outputs agree within 0.0e+00.",
        ),
        (
            trial(line("serve", *FAST), line("max", 1.6, 1.8, max_abs_diff=1e-2)),
            "max is 1.70x (1.60 to 1.80) as fast as eager; outputs agree within 1.0e-02.",
        ),
        (
            trial(line("serve", *FAST), line("max", *FAST, max_abs_diff=0.5)),
            "Do not use max: its output is 5.0e-01 from eager.",
        ),
        (
            trial(line("max", *FAST)),
            "max is 1.40x (1.30 to 1.50) as fast as eager; outputs agree within 0.0e+00.",
        ),
        (
            trial(is_interrupted=True),
            "It was interrupted before anything could be compared.",
        ),
    ],
)
def test_verdict_is_one_sentence(tried: Trial, sentence: str) -> None:
    assert verdict(tried) == sentence


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (5.18, 155.95, "at least 5.18x"),
        (0.1, 0.9, "at most 0.90x"),
        (0.95, 1.2, "too noisy to say (0.95 to 1.20)"),
        (0.6, 1.9, "too noisy to say"),
        (1.3, 1.5, "1.40x (1.30 to 1.50)"),
    ],
)
def test_interval_that_means_nothing_is_not_said(low: float, high: float, words: str) -> None:
    assert spread(Ratio((low + high) / 2, low, high, 15)) == words


def test_last_comparison_that_is_cut_short_keeps_the_rounds_of_earlier_ones() -> None:
    clock, rounds = Clock(), Rounds[str]()
    eager, default = clock.call("eager", [4.0]), clock.call("default", [2.0])
    rounds.take({"eager": eager, "default": default}, baseline="eager", clock=clock)
    calls = {"eager": eager, "default": default, "serve": clock.call("serve", [1.0])}
    rounds.take(calls, baseline="eager", limits=Limits(seconds=0), clock=clock)
    ratio = rounds.ratio("eager", "default")
    assert (ratio.median, ratio.rounds) == (2.0, 12)
    assert rounds.ratio("default", "serve").rounds == 1


def test_warming_ends_when_two_samples_agree_or_the_time_is_up() -> None:
    clock = Clock()
    assert warmed(clock.call("", [900, 400, 30, 29, 1]), seconds=60, clock=clock) == 29
    assert warmed(clock.call("", [1, 9, 1, 9]), seconds=0.015, clock=clock) in (1, 9)


@pytest.mark.parametrize(("slowdown", "count"), [(5.6, 1), (0.6, 2)])
def test_one_thread_is_taken_where_more_are_slower_and_said(
    slowdown: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr(threads, "slowdown", lambda _: slowdown)
    torch.set_num_threads(2)
    try:
        with threads.thread_count(None) as words:
            assert torch.get_num_threads() == count
        assert ("a matrix product takes 5.6 times as long" in words) == (count == 1)
        assert torch.get_num_threads() == 2
        with threads.thread_count(3) as words:
            assert (torch.get_num_threads(), words) == (3, "")
    finally:
        torch.set_num_threads(before)


def test_probe_times_a_product_with_one_thread_and_with_more() -> None:
    before = torch.get_num_threads()
    try:
        assert threads.slowdown(2) > 0
    finally:
        torch.set_num_threads(before)


def test_the_probe_counts_the_few_products_that_wait_long(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = [{1: 2e6, 2: 1e6}] * 9 + [{1: 2e6, 2: 90e6}]
    monkeypatch.setattr(threads, "interleaved", lambda _: iter(rounds))
    monkeypatch.setattr(threads, "FEWEST_ROUNDS", len(rounds) + 1)
    before = torch.get_num_threads()
    try:
        assert threads.slowdown(2) == pytest.approx(99 / 20)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("tried", "code"),
    [
        (trial(line("default", *FAST), line("serve", 2.0, 2.2)), "serve"),
        (trial(line("default", *SAME)), ""),
        (trial(line("default", *FAST, max_abs_diff=0.5), line("serve", *FAST)), ""),
    ],
)
def test_verdict_ends_in_the_line_to_paste(tried: Trial, code: str) -> None:
    line = f'torch.compile(model, backend="bringup", mode="{code}")' if code else ""
    assert recommended_code(tried) == line
