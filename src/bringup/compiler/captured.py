"""`options={"capture": True}`: a compiled inference graph, captured once per call signature."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch

from bringup import graphs
from bringup._native import torch_library
from bringup.compiler.inner import BoxedFunction
from bringup.errors import BringupError, CaptureError
from bringup.graphs._copies import copied
from bringup.graphs._inputs import Placeholders

__all__ = ["captured", "refuse_input_writes"]

_CAPTURE_TURN = threading.RLock()
"""Captures run one after the other in a process: compiled functions of several threads wait."""


def captured(
    run: BoxedFunction, name: str, static: frozenset[int], max_captures: int
) -> BoxedFunction:
    """`run`, but replayed from a captured graph that was made for this kind of call.

    A call's kind is the shape, strides, dtype and device of every tensor and the value of every
    number. Tensors are copied into slots of the captured graph, except those of `static` (weights),
    which are read where they are; another address of one is another kind of call. Results are
    copies that belong to the caller.

    Args:
        run: the compiled graph.
        name: what an error calls it.
        static: positions of arguments that keep their address from call to call.
        max_captures: how many kinds are kept; the one used longest ago makes room.

    Raises `CaptureError` at the call when the graph cannot be captured; the message names the
    operator or tensor.
    """
    captures: OrderedDict[object, _Captured] = OrderedDict()
    lock = threading.Lock()  # of the dict: held for moments

    def known(key: object) -> _Captured | None:
        with lock:
            entry = captures.get(key)
            if entry is not None:
                captures.move_to_end(key)
            return entry

    def capture(key: object, arguments: list[Any]) -> _Captured:
        with _CAPTURE_TURN:
            entry = known(key)  # another thread may have been first
            if entry is not None:
                return entry
            entry = _Captured(run, name, arguments, static)
        with lock:
            captures[key] = entry
            if len(captures) > max_captures:
                captures.popitem(last=False)
        return entry

    kind_of = torch_library("option 'capture'").graphs.call_kind

    def run_captured(arguments: list[Any]) -> Any:
        key = kind_of(arguments, [index in static for index in range(len(arguments))])
        results = (known(key) or capture(key, arguments)).call(arguments)
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
    """One captured graph with inputs of its own."""

    def __init__(
        self, run: BoxedFunction, name: str, arguments: Sequence[Any], static: frozenset[int]
    ) -> None:
        slots = {
            index: copied(item)
            for index, item in enumerate(arguments)
            if isinstance(item, torch.Tensor) and index not in static
        }
        given = [slots.get(index, item) for index, item in enumerate(arguments)]
        self._copied = tuple(slots)
        self._kept = [item for index, item in enumerate(given) if index in static]
        self._graph = graphs.CapturedGraph()
        inputs = Placeholders(slots.values())
        try:
            with torch.no_grad(), graphs.capture(self._graph, inputs=inputs):
                self._graph.outputs = tuple(run(given))
        except CaptureError as error:
            raise CaptureError(
                f"option 'capture': {name} cannot be captured: {error}. Compile it without "
                "capture, or keep this part out of the compiled function"
            ) from error

    def call(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        given = [arguments[i] for i in self._copied]
        if not torch.is_grad_enabled():
            return self._graph.run(*given)  # type: ignore[no-any-return]
        with torch.no_grad():
            return self._graph.run(*given)  # type: ignore[no-any-return]
