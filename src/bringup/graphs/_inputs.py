"""What `CapturedGraph.run` takes: the values of a captured call by name, tensors among them. Calls
of a known form follow a plan; nests and mistakes are matched by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch.utils import _pytree

from bringup.errors import CaptureError, ContractError
from bringup.graphs._copies import (
    has_memory,
    overlaps_itself,
    repeated_dims,
    shares_memory,
    storage_address,
)
from bringup.graphs._equality import Snapshot, same_value, same_view, value_text
from bringup.graphs._scope import ModuleCall

Copies = tuple[list[torch.Tensor], list[torch.Tensor]]
"""Captured tensors, and those that are to be copied into them."""
_NO_SNAPSHOTS: Mapping[int, Snapshot] = MappingProxyType({})


@dataclass(frozen=True)
class Form:
    """How run's arguments are named: those of a function with these parameters, called `title`, or
    else as they were declared, all by position or all by keyword.
    """

    names: Sequence[str]
    by_keyword: bool = False
    title: str = ""
    kinds: Sequence[int] = ()  # of the parameters, inspect's

    def binder(self) -> Callable[[tuple[Any, ...], dict[str, Any]], Mapping[str, Any]]:
        """Return what gives run's arguments by name, or raises TypeError."""
        return self._of_declared if not self.title else self._of_parameters()

    def _of_declared(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
        if self.by_keyword and not args:
            return kwargs
        if not self.by_keyword and not kwargs and len(args) == len(self.names):
            return dict(zip(self.names, args, strict=True))
        listed = ", ".join(f"{name}=" for name in self.names)
        form = listed if self.by_keyword else f"{len(self.names)} inputs"
        raise TypeError(
            f"CapturedGraph.run: takes {form}, as declared, got {len(args)} by position"
            f" and {list(kwargs)} by keyword"
        )

    def _of_parameters(self) -> Callable[[tuple[Any, ...], dict[str, Any]], Mapping[str, Any]]:
        kinds = [inspect._ParameterKind(kind) for kind in self.kinds]
        parameters = map(inspect.Parameter, self.names, kinds)
        signature = inspect.Signature(list(parameters))

        def bind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
            try:
                return signature.bind_partial(*args, **kwargs).arguments
            except TypeError as error:
                raise TypeError(
                    f"CapturedGraph.run: {error}; run takes what {self.title} was called with"
                ) from None

        return bind


@dataclass(frozen=True, slots=True)
class _Place:
    """What a call of a planned form has in one place."""

    captured: Any  # the captured value
    # Of a tensor into which another one can be copied as it is; None of anything else.
    shape: torch.Size | None = None
    dtype: torch.dtype | None = None
    device: torch.device | None = None


class Inputs:
    """The values of the captured call.

    `form` turns run's arguments into values by name; storages in `fixed` (weights) are not
    written; `snapshots` are of objects as the call found them, by id; the graph need not read what
    `may_be_unread`.
    """

    def __init__(
        self,
        form: Form,
        values: Mapping[str, Any],
        fixed: frozenset[int] = frozenset(),
        snapshots: Mapping[int, Snapshot] = _NO_SNAPSHOTS,
        *,
        may_be_unread: bool = False,
    ) -> None:
        self.form, self.values = form, values
        self._bind = form.binder()
        self._may_be_unread = may_be_unread
        self._captured = _leaves(values)
        self._argument_of = {
            leaf: name for name, value in values.items() for leaf in _leaves({name: value})
        }
        self.tensors = {
            name: leaf for name, leaf in self._captured.items() if isinstance(leaf, torch.Tensor)
        }
        self._snapshots = {
            name: snapshots[id(leaf)]
            for name, leaf in self._captured.items()
            if id(leaf) in snapshots
        }
        self._plans: dict[tuple[int | str, ...], tuple[_Place, ...] | None] = {}
        self.kept: dict[str, str] = {}  # inputs that must be the captured tensor, and why
        for name, tensor in self.tensors.items():
            if isinstance(tensor, torch.nn.Parameter) or storage_address(tensor) in fixed:
                self.kept[name] = "is a weight"
            elif any(shares_memory(tensor, t) for n, t in self.tensors.items() if n != name):
                self.kept[name] = "shares memory with another input"

    def check_known(self, native: Any, results: Sequence[torch.Tensor]) -> None:
        """Raise CaptureError for a tensor that the graph does not know, and that is no result."""
        for name, tensor in self.tensors.items():
            if not self._may_be_unread and is_foreign(tensor, native, results):
                raise CaptureError(
                    f"capture(inputs=...): {name} ({value_text(tensor)}) is no tensor that the"
                    " graph reads or writes: no run could depend on it. Give the tensors that the"
                    " captured block reads"
                )

    def settle(self, native: Any) -> None:
        """Record after the capture which tensors the graph made or writes."""
        for name, tensor in self.tensors.items():
            if native.owns(tensor):
                self.kept[name] = "was made inside the capture"
            elif native.writes(tensor):
                self.kept[name] = "is written by the graph"
        for snapshot in self._snapshots.values():
            snapshot.settle(native)

    def match(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Copies:
        """Return what has to be copied."""
        form: tuple[int | str, ...] = (len(args), *kwargs)
        if form not in self._plans:
            self._plans[form] = self._plan(args, kwargs)
        plan = self._plans[form]
        copies = None if plan is None else _planned(plan, (*args, *kwargs.values()))
        return self._by_name(args, kwargs) if copies is None else copies

    def _plan(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[_Place, ...] | None:
        """Return the places of such a call; None for a nest, an object, or a missing tensor."""
        count = len(args) + len(kwargs)
        numbers = dict(zip(kwargs, range(len(args), count), strict=True))
        names = {
            i: name for name, i in _leaves(self._bind(tuple(range(len(args))), numbers)).items()
        }
        called = set(names.values())
        if not self.tensors.keys() <= called <= self._captured.keys() - self._snapshots.keys():
            return None
        return tuple(self._place(names[i]) for i in range(count))

    def _place(self, name: str) -> _Place:
        captured = self._captured[name]
        if name not in self.tensors or name in self.kept:
            return _Place(captured)
        if repeated_dims(captured) or overlaps_itself(captured.shape, captured.stride()):
            return _Place(captured)
        return _Place(captured, captured.shape, captured.dtype, captured.device)

    def _by_name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Copies:
        values = self._bind(args, kwargs)
        given = _leaves(values)
        for name in given:
            if name not in self._captured:
                raise TypeError(
                    f"CapturedGraph.run: the captured call was not given '{name}'. {self._form()}"
                )
        targets, sources = [], []
        for name, expected in self._captured.items():
            if name in given:
                if self._differs(name, expected, given[name]):
                    targets.append(expected)
                    sources.append(given[name])
            elif name in self.tensors or self._argument_of[name] in values:
                raise TypeError(f"CapturedGraph.run: input '{name}' is missing. {self._form()}")
        return targets, sources

    def _form(self) -> str:
        return f"It takes {', '.join(self._captured) or 'nothing'}, as when it was captured"

    def _differs(self, name: str, expected: Any, value: Any) -> bool:
        """Return whether `value` is another tensor than the captured one and may be."""
        if name not in self.tensors:
            self._check_value(name, expected, value)
            return False
        if not isinstance(value, torch.Tensor):
            raise ContractError(
                f"CapturedGraph.run: input '{name}' takes {value_text(expected)},"
                f" got {value_text(value)}"
            )
        if same_view(expected, value):
            return False
        _check_tensor(name, expected, value)
        if name in self.kept:
            raise ContractError(
                f"CapturedGraph.run: input '{name}' {self.kept[name]}: run can take the captured"
                " tensor only, not another one. Change its content in place"
            )
        repeats = any(value.stride(dim) != 0 for dim in repeated_dims(expected))
        if repeats or overlaps_itself(expected.shape, expected.stride()):
            raise ContractError(
                f"CapturedGraph.run: the captured input '{name}' cannot be written: it has one"
                " element in memory for many. Capture with a contiguous one"
            )
        return True

    def _check_value(self, name: str, expected: Any, value: Any) -> None:
        snapshot = self._snapshots.get(name)
        if snapshot is not None:
            difference = snapshot.difference(value)
            if difference is None:
                return
            path, was, now = difference
        elif expected is value or same_value(expected, value):
            return
        else:
            path, was, now = "", value_text(expected), value_text(value)
        raise ContractError(
            f"CapturedGraph.run: '{name}{path}' was {was} when the graph was captured, got {now}:"
            " a captured graph keeps it. Capture another graph for it"
        )


def _planned(plan: tuple[_Place, ...], values: tuple[Any, ...]) -> Copies | None:
    """Return None when a value is no plain tensor that fits its place."""
    targets, sources = [], []
    gradients = torch.is_grad_enabled()
    for place, value in zip(plan, values, strict=True):
        captured = place.captured
        if value is captured or (place.shape is None and same_value(captured, value)):
            continue
        if (
            type(value) is not torch.Tensor
            or value.shape != place.shape
            or value.dtype != place.dtype
            or value.device != place.device
            or value.layout != torch.strided
            or (gradients and value.requires_grad)
        ):
            return None
        targets.append(captured)
        sources.append(value)
    return targets, sources


def _check_tensor(name: str, expected: torch.Tensor, value: torch.Tensor) -> None:
    for what, wanted, got in (
        ("shape", list(expected.shape), list(value.shape)),
        ("dtype", expected.dtype, value.dtype),
        ("device", expected.device, value.device),
        ("layout", expected.layout, value.layout),
    ):
        if wanted != got:
            raise ContractError(
                f"CapturedGraph.run: input '{name}' has {what} {got}, and the captured one"
                f" {wanted}. Convert it, or capture another graph for it"
            )
    if value.requires_grad and torch.is_grad_enabled():
        raise ContractError(
            f"CapturedGraph.run: input '{name}' requires a gradient, and a captured graph gives"
            " results without one: call run under torch.no_grad(), or detach the input"
        )


class Placeholders(tuple[Any, ...]):
    """All inputs of a traced function, so that an unread one is not taken for another."""


def declared_inputs(inputs: Any) -> Inputs:
    """Return inputs as `capture(inputs=...)` declares them: a tensor, a sequence (run takes them by
    position) or a mapping (by keyword), also of nests. Raises `TypeError` for anything else.
    """
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    if isinstance(inputs, Mapping):
        names, by_keyword = [str(name) for name in inputs], True
        values = dict(zip(names, inputs.values(), strict=True))
    elif isinstance(inputs, Sequence) and not isinstance(inputs, (str, bytes)):
        names, by_keyword = [f"inputs[{i}]" for i in range(len(inputs))], False
        values = dict(zip(names, inputs, strict=True))
    else:
        raise TypeError(
            f"capture(inputs=...) takes a tensor, a sequence or a mapping, got {value_text(inputs)}"
        )

    for name, leaf in _leaves(values).items():
        if not isinstance(leaf, torch.Tensor) or not has_memory(leaf):
            raise TypeError(
                f"capture(inputs=...): {name} is no strided tensor, got {value_text(leaf)}"
            )
    form = Form(names, by_keyword)
    return Inputs(form, values, may_be_unread=isinstance(inputs, Placeholders))


def inputs_of(call: ModuleCall) -> Inputs:
    """Return what a module was called with."""
    parameters = _signature(call.module.forward).parameters
    kinds = [parameter.kind for parameter in parameters.values()]
    form = Form(list(parameters), title=type(call.module).__name__, kinds=kinds)
    weights = [*call.module.parameters(), *call.module.buffers()]
    fixed = frozenset(map(storage_address, weights))
    values = form.binder()(call.args, call.kwargs)
    return Inputs(form, values, fixed, call.snapshots)


def _signature(forward: Any) -> inspect.Signature:
    if not isinstance(forward, torch.ScriptMethod):
        return inspect.signature(forward)
    names = [argument.name for argument in forward.schema.arguments[1:]]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(name, kind) for name in names])


def _leaves(values: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        paths, _ = _pytree.tree_flatten_with_path(value)
        for path, leaf in paths:
            found[name + _pytree.keystr(path)] = leaf
    return found


def is_foreign(tensor: torch.Tensor, native: Any, related: Sequence[torch.Tensor]) -> bool:
    """Return whether neither the graph nor one of the related tensors has the tensor's memory."""
    if tensor.numel() == 0 or native.knows(tensor):
        return False
    return not any(shares_memory(tensor, other) for other in related)
