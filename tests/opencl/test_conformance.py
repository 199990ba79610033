"""Levels 1 and 2 of `bringup conformance` with the operators of drivers/opencl, in one process: a
fortieth of the cases in `make test`, for most of its time goes to compiling their kernels.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.forked_python import OPINFO, run_forked
from tests.opencl.conftest import ROOT, UNOPTIMIZED
from tests.opencl.operators_program import LOADED
from tests.sweeps.support import FULL, PARTS, seed

PROGRAM = f"""ROOT = {str(ROOT / "drivers/opencl/src")!r}
{LOADED}
from bringup.conformance._cases import case_ids, run_case

cases = [*case_ids(1), *case_ids(2)][int(sys.argv[2]) :: int(sys.argv[3])]
results = [run_case(case, "ocl", 5) for case in cases]
print(len(results), "cases")
for one in results:
    if one.outcome not in ("pass", "skipped"):
        print(one.id, one.outcome, one.reason)
assert sum(one.native for one in results) > len(results) // 10
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2 * PARTS) if FULL else [seed() % (2 * PARTS)])
def test_the_device_is_as_right_as_the_cpu(library: Path, number: int) -> None:
    variables = {**os.environ, "BRINGUP_OPENCL_MEMORY": "coarse", **UNOPTIMIZED}
    done = run_forked(
        PROGRAM,
        *map(str, (library, number, 2 * PARTS)),
        environment=variables,
        timeout=900,
        preload=OPINFO,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    told, *wrong = done.stdout.splitlines()
    assert told.endswith("cases")
    assert wrong == []
