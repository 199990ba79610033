"""Programs of public reports and of users, right when they were tried, stay right: none is newly
refused and none changes its numbers, on cpu, on the device, and with memory or kernels of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.sweeps.reports.run import cases
from tests.sweeps.support import part

ROOT = Path(__file__).parents[3]

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
    command = [sys.executable, "-m", "tests.sweeps.reports.run", *options, *chosen]
    path = f"{ROOT}{os.pathsep}{ROOT / 'drivers/sim_ops/src'}"
    environment = {**os.environ, **variables, "PYTHONPATH": path}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout) == []
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
