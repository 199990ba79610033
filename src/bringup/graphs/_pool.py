"""Memory that several captured graphs share."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

from bringup._native import torch_library
from bringup.errors import CaptureError


class GraphPool:
    """Memory that graphs take turns in: what a capture has freed, the next capture in the pool
    hands out again. `graph_pool_handle()` and `CapturedGraph.pool()` give one.

    Args:
        native: the pool of a graph that is there already; None makes a new one.

    Attributes:
        number: no other pool of the process has it.
    """

    def __init__(self, native: Any = None) -> None:
        if native is None:
            native = torch_library("graphs.GraphPool").graphs.MemoryPool(reuses_results=False)
        self._native = native
        self.number = next(_numbers)
        _pools[self.number] = self

    @property
    def id(self) -> tuple[int, int]:
        """Return what CUDA's `MemPool.id` is: captures take it as `pool`, too."""
        return 0, self.number

    @property
    def memory_bytes(self) -> int:
        """Return bytes that the pool has taken, for all of its graphs."""
        return int(self._native.reserved_bytes)

    def describe(self) -> str:
        """Return a line for the pool and one for each of its graphs: where it was captured, its
        results and intermediates in bytes, and how many of these other graphs use too.
        """
        rows = self._native.graphs()
        lines = [f"pool of {len(rows)} graphs, {self.memory_bytes} bytes"]
        lines += [f"  {name}: {size} bytes, {shared} shared" for name, size, shared in rows]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"GraphPool({len(self._native.graphs())} graphs, {self.memory_bytes} bytes)"


_numbers = itertools.count(1)
_pools: weakref.WeakValueDictionary[int, GraphPool] = weakref.WeakValueDictionary()


def graph_pool_handle() -> GraphPool:
    """Return a new pool of memory, for the argument `pool` of captures."""
    return GraphPool()


def pool_of(pool: object | None) -> GraphPool:
    """Return the pool that a capture is given, or a new one for None. Raises `TypeError`."""
    if pool is None:
        return GraphPool()
    if isinstance(pool, tuple) and len(pool) == 2 and pool[0] == 0 and type(pool[1]) is int:
        pool = numbered_pool(pool[1])
    if not isinstance(pool, GraphPool):
        raise TypeError(
            "pool is what graphs.graph_pool_handle() or CapturedGraph.pool() gives, got "
            f"{pool!r} ({type(pool).__name__})"
        )
    return pool


def numbered_pool(number: int) -> GraphPool | None:
    """Return the pool of this number, None for 0. Raises `CaptureError` when it is gone."""
    if number == 0:
        return None
    pool = _pools.get(number)
    if pool is None:
        raise CaptureError(
            f"pool (0, {number}) is none of a graph's: pass what Graph.pool() gave, as long as that"
            " graph is there"
        )
    return pool
