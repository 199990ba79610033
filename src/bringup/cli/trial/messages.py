"""Messages of a model's runs: prints go to stderr once, warnings and graph breaks are kept."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class GraphBreak:
    """A place in the model's code where Dynamo stopped recording and ran Python, and its reason."""

    place: str
    code: str
    reason: str

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        code = f" (`{self.code}`)" if self.code else ""
        return f"{where}{self.reason}{code}"


@contextmanager
def graph_breaks() -> Iterator[list[GraphBreak]]:
    """Collect the breaks of what is compiled in this block; the list is filled at its end."""
    from torch._dynamo.output_graph import graph_break_reasons

    before = len(graph_break_reasons)
    found: list[GraphBreak] = []
    try:
        yield found
    finally:
        for reason in graph_break_reasons[before:]:
            frame = reason.user_stack[-1] if reason.user_stack else None
            place = "" if frame is None else f"{_short(frame.filename)}:{frame.lineno}"
            code = "" if frame is None else (frame.line or "").strip()
            first = reason.reason.strip().partition("\n")[0].rstrip(".")
            broken = GraphBreak(place, code, first)
            if broken not in found:
                found.append(broken)


def _short(name: str) -> str:
    """Return a file as it is reached from the current folder, where it lies below it."""
    path = Path(name)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else name


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
