"""Data parallel, sharded, pipelined and compiled training, in two and four processes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.distributed.ranks import run
from tests.sweeps.support import part

WAYS: dict[str, dict[str, Any]] = {
    "both": {},
    "unnamed": {"backend": ""},
    "isolated": {"environment": {"BRINGUP_SIM_ISOLATED": "1"}},
    "bound": {"backend": "cpu:gloo,npu:bringup", "bound": True},
    "four": {"ranks": 4},
    "random": {"environment": {"BRINGUP_SIM_FAULTS": "reorder=random,seed=1"}},
}


@pytest.mark.parametrize("way", part([*WAYS], always=["both"]))
def test_training_on_several_ranks_is_that_of_one_process(way: str) -> None:
    outcome = run("users", **WAYS[way])
    assert not outcome.failed
    assert outcome.codes == (0,) * len(outcome.codes), outcome.text
    assert outcome.asked
    assert set(outcome.passed) == set(outcome.asked)


def test_random_trainings_have_the_gradients_of_one_process() -> None:
    outcome = run("training_programs")
    assert not outcome.failed
    assert outcome.codes == (0, 0), outcome.text
    assert set(outcome.passed) == set(outcome.asked) != set()
