"""Functions of Python between a replay's operators, that look at tensors or tell its progress."""

from __future__ import annotations

import functools
import itertools
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree

from bringup.graphs._capture import is_current_stream_capturing, keep_in_graph


class _HostCall:
    """A function that nodes call by number, from the end of the capture on."""

    def __init__(self, function: Callable[..., object], given: object = None) -> None:
        self.function = function
        self.given = given  # in the place of copies of tensors
        self.number = next(_numbers)
        self.armed = False

    def arm(self) -> None:
        """Begin to call: the capture, which replays once itself, is over."""
        self.armed = True


_numbers = itertools.count(1)
_calls: weakref.WeakValueDictionary[int, _HostCall] = weakref.WeakValueDictionary()


def _run(tensors: list[torch.Tensor], number: int) -> None:
    call = _calls.get(number)
    if call is None or not call.armed:
        return
    if call.given is not None:
        call.function(call.given)
    else:
        call.function(*(tensor.detach().cpu().clone() for tensor in tensors))


@functools.cache
def _operator() -> Any:
    library = torch.library.Library("bringup_graphs", "FRAGMENT")
    library.define("host_function(Tensor[] tensors, int function) -> ()")
    library.impl("host_function", _run, "CompositeExplicitAutograd")
    return library, torch.ops.bringup_graphs.host_function.default


def host_function(function: Callable[..., object], *tensors: torch.Tensor) -> None:
    """Call `function` with copies of the tensors on the cpu, after what was computed before: in
    every replay where a capture is under way, and now where none is.

    On a device replays wait for it, on a thread of the driver's that waits for Python: a function
    that waits for the device waits for ever. What it raises is the error of that replay.

    Args:
        function: takes as many tensors as are given here. The capture itself does not call it.
        tensors: at least one.

    Raises:
        TypeError: `function` cannot be called, or there is no tensor.
    """
    if not callable(function):
        raise TypeError(f"host_function takes a function, got {function!r}")
    if not tensors or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        raise TypeError(f"host_function takes tensors after the function, got {tensors!r}")
    _call(_HostCall(function), tensors)


def launch_host_function(
    stream: object, function: Callable[[Any], object], arguments: object
) -> None:
    """Call `function(arguments)` as `host_function` does, with the tensors in them themselves: what
    torch_npu calls `_launch_host_func`. On a device it may give other streams work, which a replay
    does not wait for, and must not wait for the device.

    Args:
        stream: accepted for programs written for torch_npu; it is the current one's.
        function: takes `arguments` alone.
        arguments: any nest that is not None; at least one tensor is in it.

    Raises:
        TypeError: `function` cannot be called, or there is no tensor.
    """
    del stream
    tensors = [one for one in _pytree.tree_leaves(arguments) if isinstance(one, torch.Tensor)]
    if not callable(function) or not tensors:
        raise TypeError(f"a function and a nest with tensors, got {function!r} and {arguments!r}")
    _call(_HostCall(function, arguments), tensors)


def subscribe_report(stream: object) -> None:
    """Do nothing: host functions need no thread of the program's. For programs written for
    torch_npu, as is `_unsubscribe_report`.

    Args:
        stream: of the device.
    """


def _call(call: _HostCall, tensors: Sequence[torch.Tensor]) -> None:
    _calls[call.number] = call
    if is_current_stream_capturing():
        keep_in_graph(call)
    else:
        call.arm()
    with torch.no_grad():
        _operator()[1]([tensor.detach() for tensor in tensors], call.number)


def print_tensor(tensor: torch.Tensor, name: str = "", *, file: Any = None) -> None:
    """Print a tensor as it is in every replay, or now where no capture is under way.

    Args:
        tensor: what to print.
        name: before it.
        file: where to print, `sys.stdout` as it is then by default.
    """

    def show(value: torch.Tensor) -> None:
        out = sys.stdout if file is None else file
        print(f"{name}: {value}" if name else value, file=out, flush=True)

    host_function(show, tensor)


def save_tensor(
    tensors: torch.Tensor | Sequence[torch.Tensor],
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
) -> None:
    """Save tensors (`torch.save`, on the cpu) as they are in every replay, or now where no capture
    is under way.

    Args:
        tensors: one, or a sequence, which is saved as a list.
        path: of the file. Replays are counted: `x.pt` becomes `x.0.pt`, `x.1.pt`, ...
        overwrite: writes `path` itself each time.

    Raises:
        OSError: at the replay, where the file cannot be written.
    """
    target, numbers = Path(path), itertools.count()
    alone = isinstance(tensors, torch.Tensor)

    def save(*values: torch.Tensor) -> None:
        number = "" if overwrite else f".{next(numbers)}"
        content = values[0] if alone else list(values)
        torch.save(content, target.with_suffix(f"{number}{target.suffix}"))

    host_function(save, *([tensors] if isinstance(tensors, torch.Tensor) else tensors))
