"""Random programs captured at every level: replays on new inputs give the bits of eager.

Programs are of many operators, dtypes and layouts, and write in place.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from tests.forked_python import output_of_module
from tests.opencl.conftest import build
from tests.sweeps.replay_programs import compare
from tests.sweeps.support import part, sized
from tests.tool_module import tool_module

from bringup import devices

PROGRAMS = sized(50, 1000)
PARTS = 2
MODULE = "tests.sweeps.replay_programs"


@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize("first", range(PARTS))
def test_replays_of_every_level_give_what_eager_gives(
    first: int, device: str, sweep_counts: Counter[str]
) -> None:
    if device == "npu":
        devices.load_driver("sim")
    sweep_counts.update(compare(device, range(first, PROGRAMS, PARTS)))


@pytest.mark.parametrize("first", part(range(20)))
def test_replays_are_the_same_on_an_opencl_device(
    first: int, tmp_path: Path, sweep_counts: Counter[str]
) -> None:
    if packages := tool_module("install_compilers").missing_libraries():
        pytest.skip(f"OpenCL is missing: apt-get install {' '.join(packages)}")
    library = str(build(tmp_path / "libocl.so"))
    numbers = (str(first), str(sized(60, 1000)), "20")
    fine = {"BRINGUP_OPENCL_MEMORY": "fine"}
    sweep_counts.update(json.loads(output_of_module(MODULE, library, "ocl", *numbers, **fine)))


@pytest.mark.parametrize("first", part(range(20)))
def test_replays_are_the_same_in_isolated_memory(first: int, sweep_counts: Counter[str]) -> None:
    """Nothing runs on the host there, and the simulator's own operators are what is fused."""
    given = ("sim", "npu", str(first), str(sized(40, 1000)), "20", "bringup_sim_ops")
    counts = json.loads(output_of_module(MODULE, *given, BRINGUP_SIM_ISOLATED="1"))
    assert counts["npu, level 2"]
    sweep_counts.update(counts)
