"""The fallback of an OpenCL device: how often it waits."""

from __future__ import annotations

from pathlib import Path

from tests.forked_python import output_of

WAITS = """
import sys
import torch
from bringup import devices
devices.load_driver(sys.argv[1])
x, y, z = (torch.arange(16.0).to("ocl") for _ in range(3))
trace = sys.argv[2]

def calls(work):
    torch.ocl.synchronize()
    before = open(trace).read()
    result = work()
    made = open(trace).read()[len(before):]
    torch.ocl.synchronize()
    return made.count('"stream_synchronize"'), made.count('"copy_async"'), result

for work in (
    lambda: x + y,
    lambda: torch.addcmul(x, y, z),
    lambda: torch.cat([x, y, z]),
    lambda: z.add_(y),
    lambda: torch.empty(4, device="ocl").random_(1, 2),
):
    waits, copies, result = calls(work)
    print(waits, copies, result.sum().item())
"""
"""Waits, copies and what came out: of two, three and three inputs, of one that is written, and of
one that is only written.
"""


def test_the_copies_of_a_call_are_waited_for_once(library: Path, tmp_path: Path) -> None:
    trace = tmp_path / "calls.trace"
    said = output_of(
        WAITS,
        str(library),
        str(trace),
        BRINGUP_OPENCL_MEMORY="coarse",
        BRINGUP_DRIVER_TRACE=str(trace),
    )
    expected = [(1, 3, 240), (1, 4, 1360), (1, 4, 360), (1, 3, 240), (1, 2, 4)]
    assert said.splitlines() == [f"{waits} {copies} {total}.0" for waits, copies, total in expected]
