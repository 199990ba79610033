"""What a run of passes over a model gives."""

from __future__ import annotations

import torch

from bringup.passes import Report

__all__ = ["Rewritten"]


class Rewritten:
    """One run of passes over a model.

    Attributes:
        reports: what they did, one for each graph.
        outputs: the tensors that the rewritten model returns; None when it could not be run.
        error: why not, or why a pass failed.
    """

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.outputs: list[torch.Tensor] | None = None
        self.error: Exception | None = None
