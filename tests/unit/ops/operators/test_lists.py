"""Operators over lists of tensors: one launch for many, with the bits of a call for each."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.forked_python import output_of
from tests.list_program import COUNTED, LISTS
from tests.sweeps.support import part

WAYS = [("1", "1", "64, 64"), ("1", "0", "64, 64"), ("0", "1", "16, 12")]
BEGIN = """
DEVICE = "npu"
from bringup import devices
devices.load_driver("sim")
devices.pointwise_kernels()
"""


@pytest.mark.parametrize(("host_code", "isolated", "most"), part(WAYS, always=[WAYS[1], WAYS[2]]))
def test_lists_are_single_launches_with_the_bits_of_single_calls(
    host_code: str, isolated: str, most: str, tmp_path: Path
) -> None:
    said = output_of(
        f"MOST, FEWER = {most}\n{BEGIN}{LISTS}{COUNTED}",
        BRINGUP_SIM_HOST_CODE=host_code,
        BRINGUP_SIM_ISOLATED=isolated,
        BRINGUP_DRIVER_TRACE=str(tmp_path / "calls.jsonl"),
    )
    assert said.splitlines()[-1] == "done"
