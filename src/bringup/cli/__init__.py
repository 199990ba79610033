"""The command line: `bringup doctor | config | demo | try | new | check | compare | coverage |
driver | conformance | passes | cache`.

Every command but `config`, whose output is for a compiler, takes `--json FILE`, `-` being standard
output. Errors are one paragraph without a traceback; `bringup --debug ...` shows it. Exit codes
mean the same in every command (`ExitCode` in `_exit.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (default: that of the process) and return its exit code."""
    from bringup.cli._app import run

    return run(arguments)
