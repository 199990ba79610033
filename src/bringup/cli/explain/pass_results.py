"""What a run of passes over a model gives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bringup import compiler
from bringup._differences import Leaf
from bringup.passes import PassReport


@dataclass
class Rewritten:
    """One run of passes over a model; `error` says why `outputs` is None, or a pass failed."""

    reports: list[PassReport] = field(default_factory=list)
    outputs: list[Leaf] | None = None
    error: Exception | None = None

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Keep the report of passes that run in this block, also where it raises."""
        before = compiler.last_report()
        try:
            yield
        finally:
            report = compiler.last_report()
            if report is not None and report is not before:
                self.reports.append(report)
