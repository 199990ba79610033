"""Random programs captured at every level: replays on new inputs give the bits of eager.

Programs are of many operators, dtypes and layouts, and write in place.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from tests.forked_python import output_of_module
from tests.opencl.conftest import ROOT, UNOPTIMIZED, build
from tests.sweeps.replay_programs import compare
from tests.sweeps.support import FULL, part, sized
from tests.tool_module import tool_module

from bringup import devices

PROGRAMS = sized(50, 1000)
PARTS = 2
PROGRAMS_OF_DEVICES = str(sized(20, 1000))  # each of which is compiled for its own
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
@pytest.mark.parametrize("package", ["", "bringup_opencl"], ids=["fine", "coarse"])
def test_replays_are_the_same_on_an_opencl_device(
    package: str, first: int, tmp_path: Path, sweep_counts: Counter[str]
) -> None:
    """In fine memory operators run on the host, in coarse memory the device has kernels for all."""
    if packages := tool_module("install_compilers").missing_libraries():
        pytest.skip(f"OpenCL is missing: apt-get install {' '.join(packages)}")
    library = str(build(tmp_path / "libocl.so"))
    given = (library, "ocl", str(first), PROGRAMS_OF_DEVICES, "20", *filter(None, [package]))
    memory = {"BRINGUP_OPENCL_MEMORY": "coarse" if package else "fine", **UNOPTIMIZED}
    path = {"PYTHONPATH": str(ROOT / "drivers" / "opencl" / "src")}
    _count(output_of_module(MODULE, *given, **memory, **path), sweep_counts, package)


@pytest.mark.parametrize("first", part(range(20)))
def test_replays_are_the_same_in_isolated_memory(first: int, sweep_counts: Counter[str]) -> None:
    """Nothing runs on the host there, and the simulator's own operators are what is fused."""
    given = ("sim", "npu", str(first), PROGRAMS_OF_DEVICES, "20", "bringup_sim_ops")
    _count(output_of_module(MODULE, *given, BRINGUP_SIM_ISOLATED="1"), sweep_counts, given[-1])


def _count(output: str, sweep_counts: Counter[str], package: str) -> None:
    counts = json.loads(output)
    assert not (FULL and package) or any("level 2" in name for name in counts)
    sweep_counts.update(counts)
