"""Programs of public reports and of users, right when they were tried, stay right: none is newly
refused and none changes its numbers, on cpu, on the device, and with memory or kernels of its own.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest
from tests.forked_python import output_of_module
from tests.sweeps.reports.run import cases
from tests.sweeps.support import part

MODES = {
    "cpu": (["--device", "cpu"], {}),
    "npu": ([], {}),
    "isolated": ([], {"BRINGUP_SIM_ISOLATED": "1"}),
    "sim_ops": (["--kernels"], {}),
    "isolated-sim_ops": (["--kernels"], {"BRINGUP_SIM_ISOLATED": "1"}),
}


@pytest.mark.parametrize("mode", MODES)
def test_a_program_of_a_report_is_still_right(mode: str, sweep_counts: Counter[str]) -> None:
    options, variables = MODES[mode]
    chosen = part([case for case in cases() if runs_in(case, mode)])
    said = output_of_module("tests.sweeps.reports.run", *options, *chosen, **variables)
    assert json.loads(said) == []
    sweep_counts["programs"] += len(chosen)


def runs_in(case: str, mode: str) -> bool:
    """Whether a program is one of this mode: what falls back cannot be captured where the host
    does not see the memory.
    """
    kind, _, _ = case.partition(":")
    if mode == "cpu":
        return kind != "device"
    if mode.startswith("isolated"):
        return kind == "device"
    return True
