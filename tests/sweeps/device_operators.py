"""A part of the OpInfo or ModuleInfo sweep, in a process whose environment chooses the device's
mode: prints counts, operators and failures as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from typing import Any

import torch

from bringup import devices
from bringup.conformance._modules import module_cases, module_failures
from bringup.conformance._opinfo import DTYPES, Failure, operators, sweep


def main() -> None:
    """Runs the part that the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--modules", action="store_true")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--step", type=int, default=1)
    chosen = parser.parse_args()
    info = devices.load_driver("sim")
    part = slice(chosen.first % chosen.step, None, chosen.step)
    report = module_report(part) if chosen.modules else operator_report(chosen.dtype, part)
    json.dump({"host_visible": info.host_visible, **report}, sys.stdout)


def operator_report(name: str, part: slice) -> dict[str, Any]:
    """Of a part of the operators, with samples of the dtype of this name."""
    dtype = getattr(torch, name)
    counts: Counter[str] = Counter()
    failures: list[Failure] = []
    ops = operators(dtype)[part]
    for op in ops:
        failures += sweep(op, dtype, counts, "npu")
    return {
        "counts": counts,
        "operators": [op.full_name for op in ops],
        "failures": [vars(failure) for failure in failures],
    }


def module_report(part: slice) -> dict[str, Any]:
    """Of a part of the modules."""
    counts: Counter[str] = Counter()
    failures = [
        f"{name}: {words}"
        for name, info, training in list(module_cases())[part]
        for words in module_failures(info, training, counts, "npu")
    ]
    return {"counts": counts, "failures": failures}


if __name__ == "__main__":
    main()
