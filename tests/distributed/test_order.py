"""Streams, threads, groups and failures around collectives on a device."""

from __future__ import annotations

import pytest
from tests.distributed.ranks import run
from tests.sweeps.support import part, seed

ISOLATED = {"BRINGUP_SIM_ISOLATED": "1"}
GLOO = {"BRINGUP_COLLECTIVES": "gloo"}
PLACES = [ISOLATED, ISOLATED | GLOO, {}, GLOO]


@pytest.mark.parametrize("environment", part(PLACES, always=[PLACES[seed() % 2]]), ids=str)
def test_collectives_keep_the_order_of_streams(environment: dict[str, str]) -> None:
    outcome = run("order", environment=environment)
    assert not outcome.failed
    assert outcome.codes == (0, 0), outcome.text
    assert set(outcome.passed) == set(outcome.asked) != set()


def test_no_wait_is_missing() -> None:
    """Each stream works when somebody waits for it, and not before."""
    late = {"BRINGUP_SIM_FAULTS": "reorder=late"}
    outcome = run("collectives", environment=late | ISOLATED)
    assert not outcome.failed
    assert outcome.codes == (0, 0), outcome.text


@pytest.mark.parametrize("environment", part([ISOLATED, {}], always=[{}]), ids=str)
def test_failures_are_errors_in_words(environment: dict[str, str]) -> None:
    outcome = run("failures", environment=environment)
    assert not outcome.failed
    assert outcome.codes == (0, 0), outcome.text
    assert "told of the dead peer" in outcome.text
    assert set(outcome.passed) == set(outcome.asked) - {"a_dead_peer_is_an_error"} != set()


def test_a_process_ends_while_a_collective_is_pending() -> None:
    outcome = run("ends")
    assert not outcome.failed
    assert outcome.codes == (0, 0), outcome.text
    assert "it ended in time" in outcome.text
