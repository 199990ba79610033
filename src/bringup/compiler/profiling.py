"""Passes as ranges of torch's profiler."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def profiler_range(name: str) -> AbstractContextManager[object]:
    """Return a range of this name while a profiler runs: `record_function` costs as a pass."""
    if not torch.autograd._profiler_enabled():
        return nullcontext()
    recorded: AbstractContextManager[object] = torch.profiler.record_function(name)
    return recorded
