"""`options={"capture": True}`: a compiled inference graph, captured once per call signature."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch

from bringup import graphs
from bringup.compiler.inner import BoxedFunction
from bringup.errors import BringupError, CaptureError

__all__ = ["captured", "refuse_input_writes"]


def captured(
    run: BoxedFunction, name: str, static: frozenset[int], max_captures: int
) -> BoxedFunction:
    """`run`, but replayed from a captured graph that was made for this kind of call.

    A call's kind is the shape, strides, dtype and device of every tensor and the value of every
    number. Tensors are copied into slots of the captured graph, except those of `static` (weights),
    which are read where they are; another address of one is another kind of call. Results are
    copies that belong to the caller.

    Arguments:
        run: the compiled graph.
        name: what an error calls it.
        static: positions of arguments that keep their address from call to call.
        max_captures: how many kinds are kept; the one used longest ago makes room.

    Raises `CaptureError` at the call when the graph cannot be captured; the message names the
    operator or tensor.
    """
    captures: OrderedDict[object, _Captured] = OrderedDict()
    lock = threading.RLock()

    def run_captured(arguments: list[Any]) -> Any:
        key = tuple(_kind(item, index in static) for index, item in enumerate(arguments))
        with lock:
            entry = captures.get(key)
            if entry is None:
                entry = captures[key] = _Captured(run, name, arguments, static)
                if len(captures) > max_captures:
                    captures.popitem(last=False)
            else:
                captures.move_to_end(key)
            results = entry.call(arguments)
        arguments.clear()
        return results

    run_captured._boxed_call = True  # type: ignore[attr-defined]
    return run_captured


def refuse_input_writes(aten: Any, name: str) -> None:
    """Raises `BringupError` when an operator of the graph writes an input: it would write a slot
    instead of the caller's tensor.
    """
    for node in aten.graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        for argument, given in zip(node.target._schema.arguments, node.args, strict=False):
            written = argument.alias_info is not None and argument.alias_info.is_write
            if written and getattr(given, "op", "") == "placeholder":
                raise BringupError(
                    f"option 'capture': {node.target} writes input {given.name!r} of {name}, and "
                    "a captured graph has copies of its inputs; compile without capture"
                )


class _Captured:
    """One captured graph, its slots and its results."""

    def __init__(
        self, run: BoxedFunction, name: str, arguments: Sequence[Any], static: frozenset[int]
    ) -> None:
        self._slots: dict[int, Any] = {}
        given = list(arguments)
        for index, item in enumerate(arguments):
            if isinstance(item, torch.Tensor) and index not in static:
                given[index] = self._slots[index] = _copy(item)
        self._kept = [item for index, item in enumerate(given) if index in static]
        self._graph = graphs.CapturedGraph()
        try:
            with torch.no_grad(), graphs.capture(self._graph):
                self._results = tuple(run(given))
        except CaptureError as error:
            raise CaptureError(
                f"option 'capture': {name} cannot be captured: {error}. Compile it without "
                "capture, or keep this part out of the compiled function"
            ) from error

    def call(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        for index, slot in self._slots.items():
            _fill(slot, arguments[index])
        self._graph.replay()
        return tuple(
            _copy(item) if isinstance(item, torch.Tensor) else item for item in self._results
        )


def _kind(item: Any, static: bool) -> object:
    if isinstance(item, torch.Tensor):
        address = item.data_ptr() if static else None
        return item.shape, item.stride(), item.dtype, item.device, address
    return type(item), item


def _copy(tensor: Any) -> Any:
    """A tensor of its own memory and the same strides; also of one that overlaps itself."""
    with torch.no_grad():
        if _dense(tensor):
            return tensor.detach().clone(memory_format=torch.preserve_format)
        return _flat(tensor).clone().as_strided(tensor.shape, tensor.stride())


def _fill(slot: Any, tensor: Any) -> None:
    with torch.no_grad():
        if _dense(slot):
            slot.copy_(tensor)
        else:
            _flat(slot).copy_(_flat(tensor))


def _dense(tensor: Any) -> bool:
    return bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))


def _flat(tensor: Any) -> Any:
    """All memory from a tensor's first element to its last."""
    if tensor.numel() == 0:
        return tensor.detach().reshape(-1)
    extent = 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return tensor.detach().as_strided((extent,), (1,))
