"""Messages while a model runs: what it prints goes to stderr the first time and nowhere afterwards,
what a logger warns of is collected.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path


class Prints:
    """Keeps standard output for the results: what `print` writes within `aside` goes elsewhere.

    What a library writes to the file descriptor itself is not caught.

    Attributes:
        silent: whether it goes nowhere; else to stderr.
    """

    def __init__(self) -> None:
        self.silent = False

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Redirect `sys.stdout` in this block."""
        if not self.silent:
            with redirect_stdout(sys.stderr):
                yield
            return
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
            yield


class _Collected(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        words = record.getMessage()
        if words not in self.said:
            self.said.append(words)


@contextmanager
def logged_warnings(name: str) -> Iterator[list[str]]:
    """Collect what the logger `name` warns of in this block, each text once."""
    handler = _Collected()
    logger = logging.getLogger(name)
    logger.addHandler(handler)
    try:
        yield handler.said
    finally:
        logger.removeHandler(handler)
