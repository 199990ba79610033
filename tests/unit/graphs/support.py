"""What the tests of captured graphs share: capturing a call, and the replay in plain Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bringup import graphs


def captured(function: Callable[..., Any], *inputs: Any) -> tuple[graphs.CapturedGraph, Any]:
    """A graph of `function(*inputs)`, and what the call returned."""
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        output = function(*inputs)
    return graph, output


class ReferenceRecorder(TorchDispatchMode):
    """The oracle: keeps every operator call, runs the calls again and copies the results."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        for func, args, kwargs, kept in self.calls:
            fresh = func(*args, **kwargs)
            pairs = zip(_tensors(kept), _tensors(fresh), strict=True)
            for old, new in pairs:
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def _tensors(result: Any) -> list[Tensor]:
    results = result if isinstance(result, (tuple, list)) else [result]
    return [value for value in results if isinstance(value, torch.Tensor)]
