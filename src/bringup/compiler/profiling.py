"""Passes as ranges of torch's profiler."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def profiler_range(name: str) -> AbstractContextManager[object]:
    """Return a range of this name; one that does nothing while no profiler runs in this thread.

    `record_function` takes as long as a pass that finds nothing, even without a recorder.
    """
    if not torch.autograd._profiler_enabled():
        return nullcontext()
    recorded: AbstractContextManager[object] = torch.profiler.record_function(name)
    return recorded
