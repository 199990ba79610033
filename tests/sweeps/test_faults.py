"""Every call that whole programs make of the driver fails once: each run raises an error that names
what failed, or its results are right, and afterwards everything is as it was and works.

`fault_programs.py` has the programs. Each sweep is a process of its own: a crash or a call that
hangs is one failed test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

import pytest
from tests.sweeps.fault_programs import FAULTS, PROGRAMS
from tests.sweeps.support import FULL, sized

PROGRAM = "tests.sweeps.fault_programs"
STEP = sized(11, 1)
MODES = {"visible": {}, "isolated": {"BRINGUP_SIM_ISOLATED": "1"}}
# Each case starts a process: the fixed slice has every program, and every kind of fault.
IN_EVERY_WAY = ("copies", "launches", "captured")
RELEASING = ("not_released", "never_released")
IN_THE_SLICE = {("memory", "not_released"), ("captured", "never_released")}
GIVE_NOTHING_BACK = ("training", "fallbacks", "mixed_precision", "random_numbers")
CASES = [
    (program, fault, mode)
    for program in PROGRAMS
    for fault in FAULTS
    for mode in MODES
    if FULL
    or (fault == "refused" and (mode == "visible" or program in IN_EVERY_WAY))
    or (mode == "visible" and program in IN_EVERY_WAY and fault not in RELEASING)
    or (mode == "visible" and (program, fault) in IN_THE_SLICE)
]


@pytest.mark.slow
@pytest.mark.parametrize(("program", "fault", "mode"), CASES)
def test_each_call_that_fails_is_an_error_or_harmless_and_the_device_recovers(
    program: str, fault: str, mode: str, sweep_counts: Counter[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", PROGRAM, program, fault, str(STEP)],
        env={
            **os.environ,
            **MODES[mode],
            "BRINGUP_WAIT_TIMEOUT": "20",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    sweep_counts.update(found["counts"])
    assert not found["problems"], "\n".join(found["problems"])
    # What only runs on the host gives streams nothing that could fail there.
    makes_no_call = (fault == "failing" and program not in IN_EVERY_WAY) or (
        fault in RELEASING and program in GIVE_NOTHING_BACK
    )
    assert found["counts"]["runs"] > 0 or makes_no_call
