"""Interleaved rounds, by a clock that only the timed calls move."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle

import pytest

from bringup.cli.trial.run import Line, Trial
from bringup.cli.trial.timing import Limits, Rounds
from bringup.cli.trial.verdict import spread, verdict
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


def rounds_of(clock: Clock, limits: Limits, **times: Sequence[float]) -> Rounds:
    rounds = Rounds()
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
    assert spread(ratio).startswith("too noisy to say (")


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
    clock, rounds = Clock(), Rounds()

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
            "Too noisy to say (default too noisy to say (0.60 to 1.90)): give it more time with "
            "--seconds, or less load.",
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
            "serve is 6.50x to 75.00x as fast as eager; outputs agree within 0.0e+00.",
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
