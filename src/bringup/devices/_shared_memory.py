"""Device memory in several processes, through the driver's BRINGUP_HAS_IPC.

The *owner* keeps a storage from the moment it is pickled, under a *ticket*, until the receiver has
let go of it or has ended, which its connection shows. Nothing lies in the file system.
"""

from __future__ import annotations

import functools
import itertools
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError, current_process
from multiprocessing.connection import Client, Connection, Listener
from types import ModuleType
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef, shared_cache, storage_from_cache

from bringup import _native
from bringup.errors import DeviceError, first_line

_USED = "a pickled tensor of a device was loaded twice: pickle it once for each receiver"
_ENDED = "a tensor was received whose memory is gone: the process that shared it has ended"
_connections: set[Any] = set()  # of this process, which its forked children shall not keep open


def native() -> ModuleType:
    """Return the native functions of devices."""
    module: ModuleType = _native.torch_library("tensors of another process").devices
    return module


def settle(device: torch.device) -> None:
    """Wait for all work of a device: another process cannot. Raises `DeviceError`."""
    status, words = native().synchronize(device.index)
    if status != 0:
        raise DeviceError(f"work of device '{device}' failed before it was shared: {words}")


# --- the owner's side


@dataclass(frozen=True)
class _Facts:
    """What a receiver needs to know of a storage."""

    identity: int  # the same for every ticket, as long as a process has the storage
    handle: bytes
    offset: int
    bytes: int


class _Owner:
    """What this process gives to others; one thread listens, one serves each of them."""

    def __init__(self) -> None:
        self.address = f"\0bringup-{secrets.token_hex(16)}"
        self._lock = threading.Lock()
        self._tickets: dict[int, tuple[torch.UntypedStorage, _Facts]] = {}  # not taken yet
        self._numbers = itertools.count(1)
        listener = Listener(self.address, "AF_UNIX", 64, authkey=bytes(current_process().authkey))
        _connections.add(listener)
        threading.Thread(target=self._listen, args=(listener,), daemon=True).start()

    def ticket(self, storage: torch.UntypedStorage) -> int:
        memory = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        handle, offset = native().export_memory(memory)
        facts = _Facts(storage._cdata, handle, offset, storage.nbytes())
        with self._lock:
            number = next(self._numbers)
            self._tickets[number] = storage, facts
        return number

    def take(self, ticket: int) -> tuple[torch.UntypedStorage, _Facts] | None:
        with self._lock:
            return self._tickets.pop(ticket, None)

    def _listen(self, listener: Listener) -> None:
        while True:
            with suppress(OSError, EOFError, AuthenticationError):
                connection = listener.accept()
                _connections.add(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        held: dict[int, torch.UntypedStorage] = {}  # by this receiver
        with suppress(EOFError, OSError), connection:
            while True:
                request, ticket = connection.recv()
                if request == "close":
                    held.pop(ticket, None)
                elif request == "again":
                    connection.send(self.ticket(held[ticket]))
                else:
                    connection.send(self._hand_over(ticket, held))
        _connections.discard(connection)

    def _hand_over(self, ticket: int, held: dict[int, torch.UntypedStorage]) -> _Facts | None:
        if (found := self.take(ticket)) is None:
            return None
        held[ticket] = found[0]
        return found[1]


@functools.cache
def _owner() -> _Owner:
    return _Owner()


# --- the receiver's side


@contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError) as error:
        raise RuntimeError(_ENDED) from error


class _Peer:
    """The connection to an owner."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._lock = threading.Lock()
        with _in_words():
            self._connection = Client(address, authkey=bytes(current_process().authkey))
        _connections.add(self._connection)

    def tell(self, request: str, ticket: int) -> None:
        with self._lock:
            self._connection.send((request, ticket))

    def ask(self, request: str, ticket: int) -> Any:
        with self._lock, _in_words():
            self._connection.send((request, ticket))
            return self._connection.recv()


@dataclass
class _Segment:
    """An allocation of an owner, open in this process."""

    address: int
    storages: int = 0


@dataclass(frozen=True)
class _Received:
    """A storage of an owner in this process."""

    peer: _Peer
    ticket: int
    device: int
    handle: bytes
    reference: StorageWeakRef


_lock = threading.Lock()  # for what follows
_peers: dict[str, _Peer] = {}
_segments: dict[tuple[str, bytes], _Segment] = {}
_received: dict[int, _Received] = {}
_numbers = itertools.count(1)


def share(receive: Callable[..., Any], storage: torch.UntypedStorage) -> tuple[Any, ...]:
    """Return what calls `receive` in another process with a new ticket. Raises `DeviceError`."""
    device = storage.device
    settle(device)
    if storage.nbytes() == 0:
        return receive, (device.index, "", 0)
    with _lock:
        received = [one for one in _received.values() if one.reference.cdata == storage._cdata]
    if received:
        peer = received[0].peer
        return receive, (device.index, peer.address, peer.ask("again", received[0].ticket))
    try:
        return receive, (device.index, _owner().address, _owner().ticket(storage))
    except RuntimeError as error:
        raise DeviceError(f"a tensor of device '{device}': {first_line(error)}") from None


def open_storage(name: str, device: int, address: str, ticket: int) -> torch.UntypedStorage:
    """Return the storage of a ticket, which is used up. Raises `RuntimeError` for a used one."""
    if native().in_forked_child():
        raise RuntimeError(
            f"device '{name}' cannot be used in a forked process, so a tensor of it cannot be"
            " received there: start the process with the 'spawn' method"
        )
    if not address:
        return torch.UntypedStorage(0, device=torch.device(name, device))
    if _owner.cache_info().currsize and address == _owner().address:
        own = _owner().take(ticket)
        if own is None:
            raise RuntimeError(_USED)
        return own[0]
    with _lock:
        return _opened(address, ticket, device)


def _opened(address: str, ticket: int, device: int) -> torch.UntypedStorage:
    if address not in _peers:
        _peers[address] = _Peer(address)
    peer = _peers[address]
    facts: _Facts | None = peer.ask("open", ticket)
    if facts is None:
        raise RuntimeError(_USED)
    key = (address, facts.identity)
    known: torch.UntypedStorage | None = storage_from_cache(torch.UntypedStorage, key)
    if known is not None:
        peer.tell("close", ticket)
        return known
    segment = _segments.get((address, facts.handle))
    if segment is None:
        segment = _Segment(native().open_memory(device, facts.handle))
        _segments[address, facts.handle] = segment
    segment.storages += 1
    number = next(_numbers)
    memory = native().tensor_in_opened(segment.address + facts.offset, facts.bytes, device, number)
    storage: torch.UntypedStorage = memory.untyped_storage()
    shared_cache[key] = StorageWeakRef(storage)
    _received[number] = _Received(peer, ticket, device, facts.handle, StorageWeakRef(storage))
    _closer()
    return storage


@functools.cache
def _closer() -> threading.Thread:
    """Return the thread that closes what is not used any more."""
    thread = threading.Thread(target=_close_ended, daemon=True)
    thread.start()
    return thread


def _close_ended() -> None:
    while True:
        number = native().next_ended_memory()
        one = _received[number]
        native().wait_to_close(one.device)
        with _lock:
            del _received[number]
            segment = _segments[one.peer.address, one.handle]
            segment.storages -= 1
            # Refused, it stays open, and the next storage in it finds it.
            if not segment.storages and native().close_memory(one.device, segment.address) == 0:
                del _segments[one.peer.address, one.handle]
        with suppress(OSError):  # the owner has ended
            one.peer.tell("close", one.ticket)


def _close_in_child() -> None:
    for connection in _connections:
        connection.close()


os.register_at_fork(after_in_child=_close_in_child)
