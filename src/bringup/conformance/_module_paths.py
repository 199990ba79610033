"""Which module an operator belongs to, in the forward and in the backward run."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload


@dataclass(frozen=True)
class Place:
    """Where in a run an operator is called; the same place in two runs is the same call.

    Attributes:
        module: the path of the innermost module, "" for the model itself.
        phase: "forward" or "backward".
        operator: with its overload, "aten::add.Tensor".
        call: how often the operator was called before in this module and phase.
    """

    module: str
    phase: str
    operator: str
    call: int

    def __str__(self) -> str:
        again = f", call {self.call + 1}" if self.call else ""
        return f"{self.operator} in the {self.phase} of {self.module or 'the model'}{again}"


class ModulePaths:
    """While entered, follows the modules of a model, so that each operator has a place.

    An operator of the backward run belongs to the module whose forward made the node of autograd's
    graph that calls it; nodes are known by their sequence numbers.
    """

    def __init__(self, model: nn.Module) -> None:
        self._names: dict[nn.Module, str] = {m: name for name, m in model.named_modules()}
        self._stack: list[tuple[str, int]] = []
        self._of_node: dict[int, str] = {}
        self._calls: Counter[tuple[str, str, str]] = Counter()
        self._handles: list[Any] = []
        self._thread = threading.get_ident()

    def __enter__(self) -> ModulePaths:
        for module in self._names:
            self._handles.append(module.register_forward_pre_hook(self._begin, prepend=True))
            self._handles.append(module.register_forward_hook(self._end, always_call=True))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def place(self, operator: OpOverload) -> Place:
        """Return the place of the operator that is called now; asked once a call."""
        node = torch._C._current_autograd_node()
        phase = "forward" if node is None else "backward"
        if self._stack:
            module = self._stack[-1][0]
        else:
            module = "" if node is None else self._of_node.get(node._sequence_nr(), "")
        name = operator_name(operator)
        call = self._calls[module, phase, name]
        self._calls[module, phase, name] += 1
        return Place(module, phase, name, call)

    def _begin(self, module: nn.Module, args: Any) -> None:
        self._stack.append((self._names[module], torch._C._autograd._get_sequence_nr()))

    def _end(self, module: nn.Module, args: Any, result: Any) -> None:
        name, first = self._stack.pop()
        if threading.get_ident() != self._thread:
            return  # the numbers of another thread are others' numbers
        for number in range(first, torch._C._autograd._get_sequence_nr()):
            self._of_node.setdefault(number, name)


def operator_name(operator: OpOverload) -> str:
    """With its overload, as torch's reports have it: "aten::add.Tensor", "aten::mm"."""
    name, overload = operator._schema.name, operator._schema.overload_name
    return f"{name}.{overload}" if overload else f"{name}"
