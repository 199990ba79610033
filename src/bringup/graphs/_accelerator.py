"""What `torch.accelerator.Graph` does on the driver's device; the native library calls it."""

from __future__ import annotations

import sys
from types import FrameType

from bringup.graphs._graph import CapturedGraph
from bringup.graphs._pool import GraphPool, numbered_pool


class AcceleratorGraph:
    """One graph; torch knows its pool by a number."""

    def __init__(self) -> None:
        self._graph = CapturedGraph()
        self._pool = GraphPool()

    def capture_begin(self, mode: str, pool: int) -> None:
        """Begin as `CapturedGraph.capture_begin`, with what the asking code can reach."""
        self._pool = numbered_pool(pool) or self._pool
        self._graph._begin_block(_frame_outside_torch(), self._pool, capture_error_mode=mode)

    def capture_end(self) -> None:
        """End as `CapturedGraph.capture_end`, or reset where the `with` block raised."""
        if _block_raised(sys._getframe(1).f_back):
            self._graph.reset()
        else:
            self._graph.capture_end()

    def instantiate(self) -> None:
        """As `CapturedGraph.instantiate`."""
        self._graph.instantiate()

    def replay(self) -> None:
        """As `CapturedGraph.replay`."""
        self._graph.replay()

    def reset(self) -> None:
        """As `CapturedGraph.reset`."""
        self._graph.reset()

    def pool(self) -> int:
        """Return the number of the graph's memory."""
        return self._pool.number

    def debug_dump(self, path: str) -> None:
        """As `CapturedGraph.debug_dump`."""
        self._graph.debug_dump(path)


def _frame_outside_torch() -> FrameType:
    """Return the innermost frame of those that called `capture_begin` that is not of torch."""
    frame = sys._getframe(2)
    while frame.f_back is not None and _is_torchs(frame):
        frame = frame.f_back
    return frame


def _block_raised(frame: FrameType | None) -> bool:
    """Return whether the frame is of `torch.accelerator.Graph.__exit__` after an exception."""
    if frame is None or frame.f_code.co_name != "__exit__" or not _is_torchs(frame):
        return False
    return frame.f_locals.get("exc_info", (None,))[0] is not None


def _is_torchs(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("torch.accelerator")
