"""A part of the functions by name, compiled in a process whose environment chooses the device's
mode: prints, as JSON, how many ran and how those that differ do.
"""

from __future__ import annotations

import json
import sys

import torch
from tests.compiled_functions import ROWS as FUNCTIONS
from tests.compiled_functions import compare
from tests.compiled_programs import PROGRAMS
from tests.compiled_tables import TABLES

from bringup import devices

ROWS = {row.name: row for row in (*FUNCTIONS.values(), *TABLES, *PROGRAMS)}


def differences(names: list[str], device: str) -> dict[str, str]:
    """Return how the rows that differ do, in words, by name."""
    found = {}
    for name in names:
        try:
            compare(ROWS[name], device)
            torch.get_device_module(device).synchronize()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return found


def main() -> None:
    """Run every STEPth row from FIRST on; arguments: driver, FIRST, STEP, folders of packages."""
    driver, first, step, *folders = sys.argv[1:]
    sys.path[:0] = folders
    info = devices.load_driver(driver)
    if folders:
        import bringup_opencl

        bringup_opencl.load()
    names = list(ROWS)[int(first) % int(step) :: int(step)]
    found = differences(names, info.device_name)
    report = {"host_visible": info.host_visible, "count": len(names), "differences": found}
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
