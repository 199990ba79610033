"""The statistics of interleaved rounds, on recorded and made-up times."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from bringup.report import Judgement, Ratio, paired_ratio


def test_ratio_is_the_median_of_the_rounds_and_not_the_ratio_of_medians() -> None:
    ours, theirs = [1.0, 10.0, 100.0], [2.0, 5.0, 400.0]
    assert paired_ratio(ours, theirs).median == 0.5
    assert statistics.median(ours) / statistics.median(theirs) == 2.0


def test_series_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        paired_ratio([1.0, 2.0], [1.0])


@pytest.mark.parametrize("rounds", [0, 1, 5])
def test_too_few_rounds_have_no_interval_and_say_nothing(rounds: int) -> None:
    found = paired_ratio([3.0] * rounds, [1.0] * rounds)
    assert (found.low, found.high, found.rounds) == (0.0, math.inf, rounds)
    assert math.isnan(found.median) == (rounds == 0)
    assert found.judgement is Judgement.TOO_NOISY
    assert not found.is_narrow(0.5)


@pytest.mark.parametrize(
    ("rounds", "rank"),
    [(6, 1), (8, 1), (9, 2), (15, 4), (20, 6), (50, 18), (100, 40)],  # published tables
)
def test_interval_is_between_the_ranks_of_the_sign_test(rounds: int, rank: int) -> None:
    found = paired_ratio([float(n) for n in range(1, rounds + 1)], [1.0] * rounds)
    assert (found.low, found.high) == (rank, rounds + 1 - rank)


def test_interval_holds_the_true_median_at_least_as_often_as_it_says() -> None:
    draw = random.Random(5)
    held = 0
    for _ in range(400):
        ratios = [math.exp(draw.gauss(0.0, 0.3)) for _ in range(15)]
        found = paired_ratio(ratios, [1.0] * 15)
        held += found.low <= 1.0 <= found.high
    assert held >= 0.94 * 400


@pytest.mark.parametrize(
    ("low", "high", "judgement"),
    [
        (1.2, 1.4, Judgement.MORE),
        (0.7, 0.9, Judgement.LESS),
        (0.97, 1.04, Judgement.ALIKE),
        (1.01, 1.03, Judgement.ALIKE),
        (1.02, 1.08, Judgement.MORE),
        (0.8, 1.3, Judgement.TOO_NOISY),
        (0.9, 1.02, Judgement.TOO_NOISY),
    ],
)
def test_judgement_is_what_the_whole_interval_bears_out(
    low: float, high: float, judgement: Judgement
) -> None:
    assert Ratio((low + high) / 2, low, high, 20).judgement is judgement


def test_narrow_means_both_ends_are_near_the_median() -> None:
    assert Ratio(2.0, 1.91, 2.09, 20).is_narrow(0.05)
    assert not Ratio(2.0, 1.91, 2.11, 20).is_narrow(0.05)
    assert not Ratio(2.0, 1.89, 2.0, 20).is_narrow(0.05)


def test_spikes_of_a_loaded_machine_do_not_make_a_matmul_twice_as_fast() -> None:
    # of the kind that was seen: 20 to 90 ms for single calls of a product of 4 ms, on both sides
    eager = [3.9, 21.0, 4.0, 88.0, 4.1, 3.9, 47.0, 4.0, 4.2, 30.0, 3.9, 4.0, 61.0, 4.1, 4.0]
    fused = [3.9, 4.1, 4.0, 4.0, 33.0, 4.0, 4.1, 52.0, 3.9, 4.0, 4.1, 20.0, 4.0, 4.2, 3.9]
    found = paired_ratio(eager, fused)
    assert found.judgement is Judgement.TOO_NOISY
    assert found.low < 1.0 < found.high
