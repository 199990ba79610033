"""Every call that whole programs make of the driver fails once: each run raises an error that names
what failed, or its results are right, and afterwards everything is as it was and works.

`fault_programs.py` has the programs. Each sweep is a process of its own: a crash or a call that
hangs is one failed test.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter

import pytest
from tests.forked_python import output_of_module
from tests.sweeps.fault_programs import FAULTS, PROGRAMS
from tests.sweeps.support import part, sized

PROGRAM = "tests.sweeps.fault_programs"
STEP = sized(11, 1)
MODES = {"visible": {}, "isolated": {"BRINGUP_SIM_ISOLATED": "1"}}
IN_EVERY_WAY = ("copies", "launches", "captured")
RELEASING = ("not_released", "never_released")
# Memory that is not given back is only seen by programs that give some back.
ALWAYS = [("memory", "not_released", "visible"), ("captured", "never_released", "visible")]
GIVE_NOTHING_BACK = ("training", "fallbacks", "mixed_precision", "random_numbers")
CASES = part([*itertools.product(PROGRAMS, FAULTS, MODES)], always=ALWAYS)


@pytest.mark.slow
@pytest.mark.parametrize(("program", "fault", "mode"), CASES)
def test_each_call_that_fails_is_an_error_or_harmless_and_the_device_recovers(
    program: str, fault: str, mode: str, sweep_counts: Counter[str]
) -> None:
    variables = {**MODES[mode], "BRINGUP_WAIT_TIMEOUT": "20"}
    said = output_of_module(PROGRAM, program, fault, str(STEP), **variables)
    found = json.loads(said.splitlines()[-1])
    sweep_counts.update(found["counts"])
    assert not found["problems"], "\n".join(found["problems"])
    # What only runs on the host gives streams nothing that could fail there.
    makes_no_call = (fault == "failing" and program not in IN_EVERY_WAY) or (
        fault in RELEASING and program in GIVE_NOTHING_BACK
    )
    assert found["counts"]["runs"] > 0 or makes_no_call
