"""Calls that a handler took part in: what was captured of each, and updates of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from bringup.errors import CaptureError, UpdateError
from bringup.graphs._handlers import GraphOpHandler, handler_for, hook_of
from bringup.graphs._recorded_arguments import TensorRef, wrapped

NOT_HANDLED = (False, None)


@dataclass
class DispatchRecord:
    """One captured call of an operator whose handler takes part.

    Attributes:
        op_cache_entry: the operator's overload that ran.
        args: its positional arguments in schema order, defaults too. Tensors are `TensorRef`.
        kwargs: its keyword-only arguments, defaults too.

    Examples:
        >>> from bringup import graphs
        >>> class Handler(graphs.GraphOpHandler):
        ...     @classmethod
        ...     def update_args(cls, dispatch_record: graphs.DispatchRecord, update_input):
        ...         dispatch_record.args[1] = update_input["axis"]
        >>> x, graph = torch.ones(2, 2), graphs.CapturedGraph()
        >>> with graphs.graph_handler_scope("cumsum", Handler), graphs.capture(graph):
        ...     y = torch.cumsum(x, 0)
        >>> graph.update([{"axis": 1}]).changed
        ('cumsum.0.dim',)
        >>> (record,) = graph.dispatch_records
        >>> record.op_cache_entry, record.named()["dim"]
        (<OpOverload(op='aten.cumsum', overload='default')>, 1)
    """

    op_cache_entry: Any
    args: list[Any]
    kwargs: dict[str, Any]

    def staged(self) -> DispatchRecord:
        """Return a copy that a handler may change."""
        return DispatchRecord(self.op_cache_entry, list(self.args), dict(self.kwargs))

    def named(self) -> dict[str, Any]:
        """Return every argument by its name."""
        names = [a.name for a in self.op_cache_entry._schema.arguments if not a.kwarg_only]
        return {**dict(zip(names, self.args, strict=False)), **self.kwargs}


HandledCall = tuple[DispatchRecord, type[GraphOpHandler], range]
"""What was recorded, whose handler took part, and the nodes that the call became."""


class HandledCalls:
    """The calls of one capture that handlers took part in, in order. `node_count` says how many
    nodes there are until now, `unrecorded` gives a block in which nothing is recorded.
    """

    def __init__(self) -> None:
        self.node_count: Callable[[], int] = lambda: 0
        self.unrecorded: Callable[[], AbstractContextManager[None]] = nullcontext
        self.calls: list[HandledCall] = []

    def handle(self, name: str, overload: str, values: list[Any]) -> tuple[bool, Any]:
        """Run one call as its handler says; (False, None) if it does not handle it."""
        func = overload_of(name, overload)
        found = handler_for(_full_name(func))
        assert found is not None, "the recorder asks for operators with a handler only"
        handler = found[0]
        args, kwargs = split_arguments(func, values)
        should_handle = getattr(handler, "should_handle", None)
        if should_handle is not None and not should_handle(func, args, kwargs):
            return NOT_HANDLED
        prepared = hook_of(handler, "prepare_capture")(func, args, kwargs)
        if not (isinstance(prepared, tuple) and len(prepared) == 3):
            raise CaptureError(
                f"{handler.__name__}.prepare_capture returns (func, args, kwargs), got {prepared!r}"
            )
        actual, args, kwargs = prepared
        of_actual = handler if actual is func else _handler_of(handler, func, actual)
        before = self.node_count()
        result = actual(*args, **kwargs)
        nodes = range(before, self.node_count())
        with self.unrecorded():
            record = _record(of_actual, actual, args, kwargs)
        self.calls.append((record, of_actual, nodes))
        return True, hook_of(handler, "postprocess_result")(result, kwargs)


def handled_nodes(
    calls: Sequence[HandledCall], ops: Sequence[str]
) -> dict[int, tuple[DispatchRecord, type[GraphOpHandler]]]:
    """Return the node of each call, among the nodes' `ops`. Raises `CaptureError` for a call that
    became no single node: an update would not reach what it was taken apart into.
    """
    found: dict[int, tuple[DispatchRecord, type[GraphOpHandler]]] = {}
    for called, of_call, nodes in calls:
        record, handler = called, of_call
        if not isinstance(record.op_cache_entry, torch._ops.OpOverload):
            record, handler = _of_operator(called, of_call, [ops[node] for node in nodes])
        name = _full_name(record.op_cache_entry)
        own = [node for node in nodes if ops[node] == name]
        if len(own) != 1:
            became = ", ".join(ops[node] for node in nodes) or "none"
            raise CaptureError(
                f"{handler.__name__} handles {name}, which became the operators {became} in the"
                " capture: a handled operator has a kernel of its own (it is not composite), and is"
                " called once by prepare_capture's overload"
            )
        found[own[0]] = (record, handler)
    return found


def _handler_of(handler: type[GraphOpHandler], func: Any, actual: Any) -> type[GraphOpHandler]:
    """Return the handler for what is called in the place of `func`."""
    if isinstance(actual, torch._ops.OpOverload):
        found = handler_for(_full_name(actual))
        if found is None:
            raise CaptureError(
                f"{handler.__name__}.prepare_capture replaced {func} by {actual}, which has no"
                f" handler: register {handler.__name__}, or another one, for it too"
            )
        return found[0]
    if not callable(actual):
        raise CaptureError(
            f"{handler.__name__}.prepare_capture replaced {func} by {actual!r}, which cannot be"
            " called"
        )
    return handler


def _of_operator(
    record: DispatchRecord, handler: type[GraphOpHandler], ops: Sequence[str]
) -> tuple[DispatchRecord, type[GraphOpHandler]]:
    """Return a call's record as one of the operator with a handler that it called, and that."""
    found = {name: of_op[0] for name in ops if (of_op := handler_for(name))}
    if len(found) != 1:
        raise CaptureError(
            f"{handler.__name__}.prepare_capture gave {record.op_cache_entry!r}, which called"
            f" {', '.join(ops) or 'no operator'}: it calls one operator with a handler, once"
        )
    ((name, own),) = found.items()
    base, _, overload = name.partition(".")
    func = overload_of(base, overload)
    positional, keywords = _completed(func, record.args, record.kwargs)
    return DispatchRecord(func, list(positional.values()), keywords), own


def overload_of(name: str, overload: str) -> Any:
    """Return the operator of a name and the name of an overload, which may be empty."""
    namespace, _, base = name.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")


def _full_name(func: Any) -> str:
    overload = func._schema.overload_name
    return str(func._schema.name) + (f".{overload}" if overload else "")


def split_arguments(func: Any, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Drop defaults as `__torch_dispatch__` does: of positional arguments the last ones."""
    arguments = list(zip(func._schema.arguments, values, strict=True))
    positional = [row for row in arguments if not row[0].kwarg_only]
    while positional and _is_default(*positional[-1]):
        positional.pop()
    return (
        tuple(value for _, value in positional),
        {a.name: value for a, value in arguments if a.kwarg_only and not _is_default(a, value)},
    )


def _is_default(argument: Any, value: Any) -> bool:
    if not argument.has_default_value() or isinstance(value, torch.Tensor):
        return False
    default = argument.default_value
    return type(value) is type(default) and repr(value) == repr(default)  # -0.0 is not 0.0


def _record(
    handler: type[GraphOpHandler], func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> DispatchRecord:
    """Return what was called, completed by the schema's defaults."""
    if not isinstance(func, torch._ops.OpOverload):
        named = {key: wrapped(value) for key, value in kwargs.items()}
        return DispatchRecord(func, [wrapped(value) for value in args], named)
    tensors = frozenset(a.name for a in func._schema.arguments if "Tensor" in str(a.real_type))
    wrap = hook_of(handler, "record_wrap_kwarg")
    positional, keywords = _completed(func, args, kwargs)
    return DispatchRecord(
        func,
        [wrapped(value) for value in positional.values()],
        {key: wrap(key, value, tensors) for key, value in keywords.items()},
    )


def _completed(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the positional and the keyword-only arguments by name, defaults too."""
    positional: dict[str, Any] = {}
    keywords: dict[str, Any] = {}
    given = list(args)
    for argument in func._schema.arguments:
        value = kwargs.get(argument.name, argument.default_value)
        if argument.kwarg_only:
            keywords[argument.name] = value
        else:
            positional[argument.name] = given.pop(0) if given else value
    return positional, keywords


class _Watched(Mapping[str, Any]):
    """An update's input that knows which of its keys were read."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        value = self._given[key]
        self.read.add(key)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)

    def __contains__(self, key: object) -> bool:
        if key in self._given:
            self.read.add(str(key))
            return True
        return False


@dataclass
class HandledRecord:
    """A handled call for updates; its values are those of its slots, updated by name too."""

    captured: DispatchRecord  # what was called
    handler: type[GraphOpHandler]  # whose `update_args` it is
    slots: dict[str, int]  # the slot of every argument that has one, by its name in the schema
    # Gives the value of every argument that has a slot, by its name.
    values: Callable[[], Mapping[str, Any]]
    given: dict[str, Any] = field(default_factory=dict)  # tensors of the last update, by reference

    @property
    def op(self) -> str:
        """Return the operator's name."""
        return _full_name(self.captured.op_cache_entry)

    def record(self) -> DispatchRecord:
        """Return the call with the values that the next replay will see."""
        now, values = self.captured.staged(), self.values()
        for index, argument in enumerate(now.op_cache_entry._schema.arguments):
            name = argument.name
            if name not in self.slots:
                continue
            former = now.kwargs[name] if argument.kwarg_only else now.args[index]
            value = _now((self.given.get(name), former), values[name])
            if argument.kwarg_only:
                now.kwargs[name] = value
            else:
                now.args[index] = value
        return now

    def stage(self, given: Mapping[str, Any]) -> tuple[list[tuple[int, Any]], set[str]]:
        """Return the slots to write with values that `given` makes, and the keys that it took.
        Nothing else may update the graph until they are written.
        """
        record = self.record()
        staged, watched = record.staged(), _Watched(given)
        for name in staged.kwargs.keys() & given.keys():
            staged.kwargs[name] = watched[name]
        hook_of(self.handler, "update_args")(staged, watched)
        before, after = record.named(), staged.named()
        if len(staged.args) != len(record.args) or after.keys() != before.keys():
            raise UpdateError(
                f"{self.handler.__name__}.update_args changed which arguments {self.op} has."
                " Nothing was changed"
            )
        pairs = []
        for name, value in after.items():
            if value is before[name]:
                continue
            if name not in self.slots:
                raise UpdateError(
                    f"{self.op}: '{name}' is no slot: update writes host values, and tensors that"
                    " the operator only reads and that were there before the capture. Nothing was"
                    " changed"
                )
            pairs.append((self.slots[name], value))
            if isinstance(value, torch.Tensor):
                self.given[name] = TensorRef(value)
        return pairs, watched.read


def _now(known: Sequence[Any], value: Any) -> Any:
    """Return a slot's value in a record: a tensor's reference, lists in the captured type."""
    if isinstance(value, torch.Tensor):
        for ref in known:
            if isinstance(ref, TensorRef) and ref.is_(value):
                return ref
        return TensorRef(value)
    captured = known[-1]
    if not isinstance(value, list):
        return value
    if any(isinstance(item, torch.Tensor) for item in value):
        refs = captured if isinstance(captured, (list, tuple)) else ()
        value = [_now(refs or (None,), item) for item in value]
    return tuple(value) if isinstance(captured, tuple) else value
