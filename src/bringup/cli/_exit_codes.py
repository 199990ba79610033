"""What the command line's exit codes mean: the one table, which the reference page shows."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """An exit code, and what it means in every command."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> ExitCode:
        made = int.__new__(cls, code)
        made._value_ = code
        made.meaning = meaning
        return made

    DONE = 0, "done, and all is well"
    FAILED = 1, "it could not be done, or something that was asked for is missing, fails or differs"
    USAGE = 2, "the command line cannot be understood, or a value in it cannot be"
    NOTHING = 3, "done, and there is nothing: nothing was rewritten, nothing repeats"
    PASS_FAILED = 4, "done, and a graph pass failed or is wrong"
    INTERRUPTED = 130, "interrupted; what was measured until then is shown"
