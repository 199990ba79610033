"""torch.distributed's collectives on a device, in two and four processes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.distributed.ranks import run
from tests.sweeps.support import FULL, part, seed

WAYS: dict[str, dict[str, Any]] = {
    "both": {},
    "alone": {"backend": "bringup"},
    "unnamed": {"backend": ""},
    "bound": {"backend": "", "bound": True},
    "isolated": {"environment": {"BRINGUP_SIM_ISOLATED": "1"}},
    "four": {"ranks": 4},
}
BY_GLOO = {"BRINGUP_COLLECTIVES": "gloo"}
for name, way in [*WAYS.items()]:
    WAYS[f"{name}, by gloo"] = way | {"environment": BY_GLOO | way.get("environment", {})}


@pytest.mark.parametrize("way", part([*WAYS], always=["isolated, by gloo"]))
def test_every_collective_gives_what_it_has_to(way: str) -> None:
    outcome = run("collectives", **WAYS[way])
    unmet = {"tensors_of_other_devices"} if way.startswith("bound") else set()
    assert set(outcome.failed) <= unmet, outcome.failed
    assert outcome.codes == (0,) * len(outcome.codes), outcome.text
    assert outcome.asked
    assert {*outcome.passed, *unmet} == set(outcome.asked)


PROGRAMS: dict[str, dict[str, Any]] = {
    "two, isolated, by gloo": {"environment": BY_GLOO | {"BRINGUP_SIM_ISOLATED": "1"}},
    "three": {"ranks": 3},
    "three, by gloo": {"ranks": 3, "environment": BY_GLOO},
    "three, isolated": {"ranks": 3, "environment": {"BRINGUP_SIM_ISOLATED": "1"}},
    "four, isolated, by gloo": {
        "ranks": 4,
        "environment": BY_GLOO | {"BRINGUP_SIM_ISOLATED": "1"},
    },
}


@pytest.mark.parametrize("way", [*PROGRAMS] if FULL else [[*PROGRAMS][seed() % len(PROGRAMS)]])
def test_random_programs_give_what_they_have_to(way: str) -> None:
    outcome = run("programs", **PROGRAMS[way])
    assert not outcome.failed
    assert outcome.codes == (0,) * len(outcome.codes), outcome.text
    assert set(outcome.passed) == set(outcome.asked) != set()
