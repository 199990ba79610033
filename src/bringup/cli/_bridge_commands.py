"""Commands of `bringup` that a C++ program runs in its own process, through the bridge."""

from __future__ import annotations

import os
import sys

from bringup.cli import main
from bringup.passes import host


def run_command(environment: bytes, sys_path: bytes, *arguments: bytes) -> int:
    """Run `bringup <arguments>`; its exit code. Arguments are bytes, as the program has them."""
    host.prepare_environment(environment, sys_path)
    try:
        return int(main([os.fsdecode(argument) for argument in arguments]))
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
