"""Passes as ranges of torch's profiler."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def profiler_range(name: str) -> AbstractContextManager[object]:
    """Return a range, none without a profiler: `record_function` costs as much as a pass."""
    if not torch.autograd._profiler_enabled():
        return nullcontext()
    recorded: AbstractContextManager[object] = torch.profiler.record_function(name)
    return recorded
