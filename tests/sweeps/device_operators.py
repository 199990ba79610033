"""A part of the OpInfo sweep, in a process whose environment chooses the device's mode: prints
counts, operators and failures as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter

import torch

from bringup import devices
from bringup.conformance._opinfo import DTYPES, Failure, operators, sweep


def main() -> None:
    """Runs the part that the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--step", type=int, default=1)
    chosen = parser.parse_args()
    info = devices.load_driver("sim")
    dtype = getattr(torch, chosen.dtype)
    counts: Counter[str] = Counter()
    failures: list[Failure] = []
    ops = operators(dtype)[chosen.first % chosen.step :: chosen.step]
    for op in ops:
        failures += sweep(op, dtype, counts, "npu")
    report = {
        "host_visible": info.host_visible,
        "counts": counts,
        "operators": [op.full_name for op in ops],
        "failures": [vars(failure) for failure in failures],
    }
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
