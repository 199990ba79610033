"""The command line: `bringup doctor | config | demo | try | new | check | passes | cache`.

Exit codes: 0 all is well, 1 something is missing or a check failed, 2 the command line cannot be
understood, 130 interrupted; `passes` has two of its own, see there. Every command but `config`
takes `--json FILE`, `-` being standard output. Errors are one paragraph without a traceback;
`bringup --debug ...` shows it.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (default: that of the process) and return its exit code."""
    from bringup.cli._app import run

    return run(arguments)
