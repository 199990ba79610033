"""The tests of what holds to the bit, with kernels built for other processors than this one: for
one of them in each run, which the number of commits chooses.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import MACHINE
from tests.sweeps.support import FULL, seed
from tests.unit.kernels.machines import unsupported

ROOT = Path(__file__).parents[3]
# For processors of AMD g++ may take apart what one instruction multiplies and adds.
MACHINES = {
    "x86_64": ("x86-64-v2", "x86-64-v3 -mtune=znver3", "x86-64-v4"),
    "aarch64": ("armv8-a", "armv8.2-a"),
}
ALL = MACHINES.get(platform.machine(), ())
HERE = [machine for machine in ALL if not unsupported(machine)]
CHOSEN = ALL if FULL else [HERE[seed() % len(HERE)]] if HERE else ALL
# Paths without a kernel of the kit, or around one that another path has.
LEFT_OUT = "device or Inductor or compiled or captured or slow"


@pytest.mark.slow
@pytest.mark.parametrize("machine", CHOSEN)
def test_bits_hold_on_other_processors(machine: str) -> None:
    if lacking := unsupported(machine):
        pytest.skip(f"this processor has no {lacking}")
    tests = [path for path in (ROOT / "tests" / "unit").rglob("test_*.py") if _has_bits(path)]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "bits", "-k", f"not ({LEFT_OUT})"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-p", "no:xdist", *tests],
        cwd=ROOT,
        env={**os.environ, MACHINE: machine},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]


def _has_bits(path: Path) -> bool:
    return path.name != Path(__file__).name and "pytest.mark.bits" in path.read_text()
