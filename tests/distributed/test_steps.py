"""Steps of DDP among failures and delays; `make sweep` has every call and 1,000 steps."""

from __future__ import annotations

import pytest
from tests.distributed.ranks import run
from tests.sweeps.support import part


@pytest.mark.parametrize(
    "environment", part([{"BRINGUP_SIM_ISOLATED": "1"}, {}], always=[{}]), ids=str
)
def test_steps_hold_among_failures_and_delays(environment: dict[str, str]) -> None:
    outcome = run("steps", environment=environment)
    assert not outcome.failed
    assert outcome.codes == (0, 0), outcome.text
    assert set(outcome.passed) == set(outcome.asked) != set()
