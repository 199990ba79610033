"""The device's tensors in other processes: shared or refused, where torch would wait for ever."""

from __future__ import annotations

import functools
import itertools
import multiprocessing.queues
import threading
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

import torch

from bringup.devices import _shared_memory

_MOST_LEAVES = 1000  # of an object that a queue is given; what lies behind fails at the receiver


def hand_over(name: str, receive: Callable[..., Any]) -> None:
    """Share or refuse tensors of device `name`; `receive` loads the driver and opens them."""
    reducers: Any = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    shares = _shared_memory.native().shares_memory()
    for kind in (torch.Tensor, torch.nn.Parameter, torch.UntypedStorage):
        original: Callable[[Any], Any] = _refuse
        if shares:
            is_storage = kind is torch.UntypedStorage
            share_one = functools.partial(_shared_memory.share, receive)
            original = share_one if is_storage else reducers[kind]
        ForkingPickler.register(kind, _reducer(name, reducers[kind], original))
    queues: Any = (multiprocessing.queues.Queue, multiprocessing.queues.JoinableQueue)
    for queue in queues:
        queue.put = _put(name, queue.put, _settle if shares else _refuse)
    storage: Any = torch.UntypedStorage
    storage.is_shared = _unless_there(name, storage.is_shared, lambda _: shares)
    share = (lambda self: self) if shares else _refuse
    storage.share_memory_ = _unless_there(name, storage.share_memory_, share)


def _settle(tensor: Any) -> None:
    _shared_memory.settle(tensor.device)


def _refusal(device: torch.device) -> str:
    return (
        f"a tensor of device '{device}' cannot be shared with another process: its memory is this "
        "process's own, as the driver has no ipc_export (BRINGUP_HAS_IPC of bringup/driver.h). "
        "Hand over tensor.cpu() and move that to the device there"
    )


def _refuse(tensor: Any) -> NoReturn:
    raise RuntimeError(_refusal(tensor.device))


def _raise(words: str) -> NoReturn:
    """Raise in the process that receives a tensor."""
    raise RuntimeError(words)


def _unless_there(
    name: str, original: Callable[..., Any], there: Callable[[Any], Any]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapped(self: Any) -> Any:
        return there(self) if self.device.type == name else original(self)

    return wrapped


def _reducer(
    name: str, original: Callable[[Any], Any], there: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def reduce(value: Any) -> Any:
        if value.device.type != name:
            return original(value)
        # A queue pickles in a thread of its own, where an error has no caller.
        if threading.current_thread().name != "QueueFeederThread":
            return there(value)
        try:
            return there(value)
        except Exception as error:
            return _raise, (str(error),)

    return reduce


def _put(
    name: str, original: Callable[..., None], there: Callable[[Any], None]
) -> Callable[..., None]:
    @functools.wraps(original)
    def put(self: Any, obj: Any, *args: Any, **kwargs: Any) -> None:
        for tensor in itertools.islice(_tensors(obj), _MOST_LEAVES):
            if tensor is not None and tensor.device.type == name:
                there(tensor)
        original(self, obj, *args, **kwargs)

    return put


def _tensors(obj: Any) -> Iterator[torch.Tensor | None]:
    """Yield the tensors in containers and modules; None for each other object."""
    if isinstance(obj, torch.Tensor):
        yield obj
    elif isinstance(obj, torch.nn.Module):
        yield from itertools.chain(obj.parameters(), obj.buffers())
    elif isinstance(obj, dict):
        for value in obj.values():
            yield from _tensors(value)
    elif isinstance(obj, (tuple, list)):
        for value in obj:
            yield from _tensors(value)
    else:
        yield None
