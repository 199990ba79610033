"""Tensors of the device and other processes, which cannot reach their memory: handing one over is
refused. torch itself would let the receiver wait for ever.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing.queues
import threading
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

import torch

_MOST_LEAVES = 1000  # of an object that a queue is given; what lies behind fails at the receiver


def refuse_handing_over(name: str) -> None:
    """Refuse to share tensors of the device of this name, in queues, pipes and arguments."""
    reducers: Any = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    for kind in (torch.Tensor, torch.nn.Parameter, torch.UntypedStorage):
        ForkingPickler.register(kind, _reducer(name, reducers[kind]))
    queues: Any = (multiprocessing.queues.Queue, multiprocessing.queues.JoinableQueue)
    for queue in queues:
        queue.put = _put(name, queue.put)
    storage: Any = torch.UntypedStorage
    storage.is_shared = _unless_there(name, storage.is_shared, lambda _: False)
    storage.share_memory_ = _unless_there(name, storage.share_memory_, _refuse)


def _refusal(device: torch.device) -> str:
    return (
        f"a tensor of device '{device}' cannot be shared with another process: its memory is this "
        "process's own. Hand over tensor.cpu() and move that to the device there"
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


def _reducer(name: str, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def reduce(value: Any) -> Any:
        if value.device.type != name:
            return original(value)
        # A queue pickles in a thread of its own, where an error has no caller.
        if threading.current_thread().name == "QueueFeederThread":
            return _raise, (_refusal(value.device),)
        _refuse(value)

    return reduce


def _put(name: str, original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def put(self: Any, obj: Any, *args: Any, **kwargs: Any) -> None:
        for tensor in itertools.islice(_tensors(obj), _MOST_LEAVES):
            if tensor is not None and tensor.device.type == name:
                _refuse(tensor)
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
