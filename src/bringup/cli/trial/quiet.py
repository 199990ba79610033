"""What a model prints itself: on stderr the first time, nowhere afterwards."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

__all__ = ["Prints"]


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
        """Redirects `sys.stdout` in this block."""
        if not self.silent:
            with redirect_stdout(sys.stderr):
                yield
            return
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
            yield
