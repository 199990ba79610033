"""Ranks of a driver's communicator, by its C functions: two and more of this process."""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from bringup import _native
from bringup.devices import _driver_abi as abi

SECOND = 1_000_000_000
SUM, PRODUCT, MIN, MAX, BAND, BOR, BXOR = range(7)
T = TypeVar("T")


def new_id(table: abi.Table) -> bytes:
    """Return the bytes of an id that this process makes."""
    made = c.create_string_buffer(128)
    assert table.function("comm_id")(made) == abi.Status.OK
    return made.raw


class Rank:
    """One rank, on a device of its own where there are two, with a stream of its own.

    Args:
        given: the communicator's id.
        rank, size: which rank of how many.
        seconds: how long it waits for the others.
    """

    def __init__(self, given: bytes, rank: int, size: int, seconds: float = 30) -> None:
        self.table = abi.open_table(_native.sim_driver_path())
        self.rank, self.size, self.device = rank, size, rank % 2
        self.torch_device = torch.device("npu", self.device)
        self.stream = torch.Stream(self.torch_device)
        self.handle = self.stream.native_handle
        self.comm = c.c_void_p()
        status = self.call(
            "comm_create", self.device, given, rank, size, int(seconds * SECOND), c.byref(self.comm)
        )
        assert status == abi.Status.OK, self.words()

    def call(self, function: str, *arguments: Any) -> abi.Status:
        """Call a function of the driver."""
        return abi.Status(self.table.function(function)(*arguments))

    def words(self) -> str:
        """Return what the driver says of this thread's last failure."""
        return str(self.table.function("last_error")().decode())

    def tensor(self, host: torch.Tensor) -> torch.Tensor:
        """Return a copy on the rank's device."""
        made = host.to(self.torch_device)
        self.settle()
        return made

    def settle(self) -> None:
        """Wait for the default stream, and for no stream of another rank."""
        torch.npu.default_stream(self.torch_device).synchronize()

    def give(self, function: str, *arguments: Any) -> abi.Status:
        """Give the rank's stream an operation."""
        plain = (a.data_ptr() if isinstance(a, torch.Tensor) else a for a in arguments)
        return self.call(function, self.comm, *plain, self.handle)

    def finish(self) -> str:
        """Wait for the stream; return what failed in it, or nothing."""
        status = self.call("stream_synchronize", self.device, self.handle)
        return "" if status == abi.Status.OK else self.words()

    def close(self) -> None:
        """Give the communicator back."""
        assert self.call("comm_destroy", self.comm) == abi.Status.OK


def as_ranks(size: int, body: Callable[[Rank], T], seconds: float = 30) -> list[T]:
    """Return what each rank's thread got."""
    given = new_id(abi.open_table(_native.sim_driver_path()))

    def run(rank: int) -> T:
        made = Rank(given, rank, size, seconds)
        try:
            return body(made)
        finally:
            made.finish()
            made.close()

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))
