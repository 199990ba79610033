"""What captures of compiled functions hold on a device, and the memory in which they take turns.

A tree of graphs keeps results alive from call to call; here results are copies that belong to the
caller, so nothing in the shared memory has to outlive a call, and any capture may follow any other.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from bringup import graphs, settings
from bringup._native import torch_library


class CaptureMemory:
    """One device's: `pool` for captures that share their memory, and `limit` in bytes for all."""

    def __init__(self, device: torch.device) -> None:
        self._native = torch_library("option 'capture'").graphs
        self.pool = graphs.GraphPool(self._native.MemoryPool(reuses_results=True))
        self.device = device

    @property
    def limit(self) -> int:
        """Return what `BRINGUP_CAPTURE_MEMORY` says, or a quarter of the device's memory."""
        given = settings.capture_memory()
        if given is None:
            return sys.maxsize
        return _total_memory(self.device) // 4 if given < 0 else given

    @contextmanager
    def turn(self) -> Iterator[None]:
        turn = self._native.PoolTurn(self.pool._native)
        try:
            yield
        finally:
            del turn

    def trim(self) -> int:
        """Give back what no capture uses any more; return what the pool has then."""
        self.pool._native.trim()
        return self.pool.memory_bytes


@functools.cache
def memory_of(device: torch.device) -> CaptureMemory:
    """Return what captures hold on a device: there is one for each."""
    return CaptureMemory(device)


def device_of(arguments: Sequence[Any]) -> torch.device:
    """Return the device that a call with these arguments works on: the cpu where none is given."""
    found = [item.device for item in arguments if isinstance(item, torch.Tensor)]
    return next((one for one in found if one.type != "cpu"), torch.device("cpu"))


def _total_memory(device: torch.device) -> int:
    if device.type == "cpu":
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(torch.get_device_module(device).mem_get_info(device)[1])
