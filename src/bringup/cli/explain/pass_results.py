"""What a run of passes over a model gives."""

from __future__ import annotations

from bringup._differences import Leaf
from bringup.passes import PassReport


class Rewritten:
    """One run of passes over a model.

    Attributes:
        reports: what they did, one for each graph.
        outputs: what the rewritten model returns; None when it could not be run.
        error: why not, or why a pass failed.
    """

    def __init__(self) -> None:
        self.reports: list[PassReport] = []
        self.outputs: list[Leaf] | None = None
        self.error: Exception | None = None
