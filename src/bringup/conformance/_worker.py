"""A process that runs cases: a line on its input is a case, a line on its output the result.

`python -m bringup.conformance._worker JSON`: DRIVER, SAMPLES, MODULE:FUNCTION or "", and null or a
rank's number and the folder of its group. When the driver is loaded the function is called. What a
case prints goes to standard error.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys


def main() -> None:
    """Run the cases that its input names."""
    driver, samples, load, rank = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch

    from bringup import devices
    from bringup.conformance._cases import run_case

    info = devices.load_driver(driver)
    if load:
        _load(load)
    facts = {
        "device": info.device_name,
        "description": info.description,
        "torch": torch.__version__,
    }
    print(json.dumps({**facts, "host_visible": info.host_visible}), file=answers, flush=True)
    for line in sys.stdin:
        result = run_case(line.strip(), info.device_name, samples, rank)
        print(json.dumps(dataclasses.asdict(result)), file=answers, flush=True)


def _load(name: str) -> None:
    """Call MODULE:FUNCTION; a process that cannot says why and ends."""
    module, _, function = name.partition(":")
    try:
        getattr(importlib.import_module(module), function)()
    except Exception as error:
        words = " ".join(str(error).split())
        sys.exit(f"loading {name}: {type(error).__name__}: {words}")


if __name__ == "__main__":
    main()
