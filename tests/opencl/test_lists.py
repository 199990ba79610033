"""Operators over lists of tensors on an OpenCL device with coarse memory."""

from __future__ import annotations

from pathlib import Path

from tests.forked_python import output_of
from tests.list_program import COUNTED, LISTS
from tests.opencl.conftest import ROOT, UNOPTIMIZED
from tests.opencl.operators_program import LOADED

BEGIN = f"""
ROOT, DEVICE, MOST, FEWER = {str(ROOT / "drivers/opencl/src")!r}, "ocl", 16, 12
{LOADED}
"""


def test_lists_are_single_launches_with_the_bits_of_single_calls(
    library: Path, tmp_path: Path
) -> None:
    trace = str(tmp_path / "calls.jsonl")
    said = output_of(
        BEGIN + LISTS + COUNTED,
        str(library),
        BRINGUP_OPENCL_MEMORY="coarse",
        BRINGUP_DRIVER_TRACE=trace,
        **UNOPTIMIZED,
    )
    assert said.splitlines()[-1] == "done"
