"""DTensor over torch's operators on the device, in two processes."""

from __future__ import annotations

import pytest
from tests.distributed.ranks import run
from tests.sweeps.support import PARTS, part


@pytest.mark.parametrize("number", part(range(PARTS)))
def test_operators_on_distributed_tensors_give_what_they_do_on_cpu(number: int) -> None:
    outcome = run("operators", only=[f"part_{number}"])
    assert not outcome.failed
    assert outcome.codes == (0, 0), outcome.text
    assert outcome.passed == outcome.asked == (f"part_{number}",)


@pytest.mark.parametrize(
    "environment", part([{"BRINGUP_SIM_ISOLATED": "1"}, {}], always=[{}]), ids=str
)
def test_distributed_tensors_are_what_they_are_in_one_process(environment: dict[str, str]) -> None:
    outcome = run("placements", environment=environment)
    assert not outcome.failed
    assert set(outcome.codes) == {0}, outcome.text
    assert set(outcome.passed) == set(outcome.asked) != set()
