"""What a model prints itself: on stderr the first time, nowhere afterwards."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

__all__ = ["Prints"]


class _Counting(io.TextIOBase):
    """Swallows text and counts it."""

    def __init__(self) -> None:
        self.characters = 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.characters += len(text)
        return len(text)


class Prints:
    """Keeps standard output for the results: what `print` writes within `aside` goes elsewhere.

    What a library writes to the file descriptor itself is not caught.

    Attributes:
        silent: whether it goes nowhere; else to stderr.
    """

    def __init__(self) -> None:
        self.silent = False
        self._swallowed = _Counting()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Redirects `sys.stdout` in this block."""
        with redirect_stdout(self._swallowed if self.silent else sys.stderr):
            yield

    @property
    def swallowed(self) -> int:
        """Characters that went nowhere."""
        return self._swallowed.characters
