"""A process that runs cases: a line on its input is a case, a line on its output the result.

`python -m bringup.conformance._worker DRIVER SAMPLES`. What a case prints goes to standard error.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys


def main() -> None:
    """Runs what it is told to, until its input ends."""
    driver, samples = sys.argv[1], int(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch

    from bringup import devices
    from bringup.conformance._cases import run_case

    info = devices.load_driver(driver)
    facts = {
        "device": info.device_name,
        "description": info.description,
        "torch": torch.__version__,
    }
    print(json.dumps({**facts, "host_visible": info.host_visible}), file=answers, flush=True)
    for line in sys.stdin:
        result = run_case(line.strip(), info.device_name, samples)
        print(json.dumps(dataclasses.asdict(result)), file=answers, flush=True)


if __name__ == "__main__":
    main()
