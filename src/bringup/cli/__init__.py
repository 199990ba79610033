"""The command line: `bringup doctor | config | demo | try | new | check | compare | coverage |
driver | conformance | passes | cache`.

Every command but `config`, whose output is for a compiler, takes `--json FILE`, `-` being standard
output. Errors are one paragraph without a traceback; `bringup --debug ...` shows it. Exit codes
mean the same in every command (`ExitCode` in `_exit_codes.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (default: that of the process) and return its exit code."""
    if "doctor" in (sys.argv[1:] if arguments is None else arguments):
        from bringup import _native

        # Commands load the native core when they are imported, and one that is cut off ends the
        # process with a signal.
        if problem := _native.core_damage():
            print(f"bringup doctor: {problem}", file=sys.stderr)
            return 1
    from bringup.cli._app import run

    return run(arguments)
