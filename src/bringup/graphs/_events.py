"""Events that order a replay with the host, or with streams that do not belong to it."""

from __future__ import annotations

from typing import Any

from bringup import settings
from bringup._native import torch_library
from bringup.graphs import _capture

_LIMIT = 60.0
_MOST = 1e9  # seconds


class ExternalEvent:
    """Orders captured code with what is outside of it: the n-th wait goes on after the n-th record.

    `wait` in captured code is a node, and so is `record`: each replay waits, or records, when it
    comes there. What runs outside of the graph does the other half. Records are counted, so that
    one that comes before its wait, or two in a row, are not lost.

    An event is an order and nothing else: a replay computes with the values of the updates before
    it was launched, whenever its waits go on.

    Args:
        limit: seconds after which a wait gives up, with an error that names the operator behind it;
            by default what `BRINGUP_WAIT_TIMEOUT` says, or 60 where it says nothing.
        name: for messages.

    Raises:
        ValueError: `limit` is not above 0 and at most 1e9.
    """

    def __init__(self, limit: float | None = None, name: str = "") -> None:
        if limit is None:
            limit = settings.wait_timeout() or _LIMIT
        if not 0 < limit <= _MOST:
            raise ValueError(f"limit is above 0 and at most {_MOST:.0e} seconds, got {limit!r}")
        what = f"event '{name}'" if name else "event"
        self._native = torch_library("graphs.ExternalEvent").graphs.Event(what, float(limit))

    def record(self, stream: Any = None) -> None:
        """Let one wait go on: now, or after the work of a stream until here.

        In captured code it is a node, whatever the stream: replays record when they come to it.

        Args:
            stream: a `torch.Stream` of the driver's device; None for now, on this thread.

        Raises:
            RuntimeError: the driver has no host functions in streams.
        """
        self._do(stream, wait=False)

    def wait(self, stream: Any = None) -> None:
        """Wait for the next record: this thread, or what comes next in a stream.

        In captured code it is a node, whatever the stream: replays wait there. Of several waits in
        one capture the first one waits, and again after a `reset`.

        Args:
            stream: a `torch.Stream` of the driver's device; None for this thread.

        Raises:
            RuntimeError: no record came within the limit, or the event was reset. In a
                stream the next synchronisation raises it; in a replay the replay, or on a device
                the next synchronisation.
        """
        self._do(stream, wait=True)

    def synchronize(self) -> None:
        """Wait for the next record on this thread, as `wait()` does."""
        self.wait()

    def query(self) -> bool:
        """Return whether a record came that no wait has taken."""
        return self.ahead > 0

    def elapsed_time(self, end: object) -> float:
        """Refuse to say how far apart two events are, as `torch.Event` does without timing.

        Args:
            end: the later event.

        Returns:
            Nothing.

        Raises:
            RuntimeError: always: this is an order alone.
        """
        raise RuntimeError(
            "an external event has no time: record torch.Event(enable_timing=True) before and"
            " behind the replay"
        )

    def reset(self, stream: Any = None) -> None:
        """Forget records that no wait has taken and waits that are over, and end those under way
        with an error: after a replay failed on a device, so that records and replays go together
        again.

        In captured code it lets a later wait of the same capture wait for a record of its own; a
        wait takes its record, so that replays have nothing to reset.

        Args:
            stream: accepted for programs written for torch_npu.
        """
        recorder = _capture.current_recorder()
        if recorder is None:
            self._native.reset()
        else:
            self._native.capture_reset(recorder)

    @property
    def ahead(self) -> int:
        """Return how many records no wait has taken; negative, how many waits have none yet."""
        return int(self._native.ahead)

    def _do(self, stream: Any, *, wait: bool) -> None:
        recorder = _capture.current_recorder()
        if recorder is not None:
            self._native.capture(recorder, wait)
        elif stream is not None and stream.device.type != "cpu":
            with stream:
                self._native.enqueue(wait, stream.device.index)
        elif wait:
            self._native.take()
        else:
            self._native.record()
