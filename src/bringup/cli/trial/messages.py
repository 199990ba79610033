"""Messages of a model's runs: prints go to stderr once, then nowhere; a logger's are collected."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path


class Prints:
    """Keep stdout for results: prints within `aside` go to stderr, or nowhere if `silent`."""

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
