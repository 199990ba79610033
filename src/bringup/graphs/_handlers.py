"""Handlers: which arguments of an operator a captured graph lets you update, under which keys, as
torch_npu registers them: classes with `UPDATE_SPECS`.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import torch

from bringup.graphs._recorded_arguments import wrapped_keyword

Spec = tuple[str, int | str, str]


class GraphOpHandler:
    """What can be updated in captured calls of some operators. Subclass it and register it.

    Attributes:
        UPDATE_SPECS: operator name (as registered) -> specs. A spec is `("arg", index, key)` or
            `("kwarg", argument_name, key)`: the argument by its place in the schema or by its name,
            and the key under which `update` finds it. The argument must be a number, a
            bool, a str, a dtype, or a list of int, float or bool, each of them possibly None.
        VARIABLE_LENGTH: keys whose list may get another length than it had when it was captured.
    """

    UPDATE_SPECS: ClassVar[Mapping[str, Sequence[Spec]]] = {}
    VARIABLE_LENGTH: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def get_update_specs(cls, op_name: str) -> Sequence[Spec]:
        """Return the specs of `op_name`, a registered name; none where `UPDATE_SPECS` has none."""
        return cls.UPDATE_SPECS.get(op_name, [])

    @classmethod
    def prepare_capture(
        cls, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """Return what is captured instead of `func(*args, **kwargs)`: another overload, with
        outputs or a workspace that are allocated here, or a function that calls one operator with a
        handler. Updates are those of the handler of what is captured.

        Args:
            func: the overload.
            args, kwargs: as `__torch_dispatch__` gives them: without what is the schema's default.
        """
        return func, args, kwargs

    @classmethod
    def postprocess_result(cls, result: Any, kwargs: dict[str, Any]) -> Any:
        """Return what the captured code gets.

        Args:
            result: what the captured call returned.
            kwargs: its keyword arguments, as `prepare_capture` left them.
        """
        return result

    @classmethod
    def record_wrap_kwarg(cls, key: str, value: Any, tensor_param_names: Collection[str]) -> Any:
        """Return how a keyword-only argument is kept in the record: tensors on a device by
        reference where the operator takes tensors, lists and tuples element by element, everything
        else as a deep copy. Called at the capture only.

        Args:
            key: its name.
            value: what the captured call was given, or the schema's default.
            tensor_param_names: the operator's parameters that are tensors or lists of them.
        """
        return wrapped_keyword(key, value, tensor_param_names)

    @classmethod
    def update_args(cls, dispatch_record: Any, update_input: Mapping[str, Any]) -> None:
        """Write an update into the record's `args` and `kwargs`, by the specs. Recorded
        keyword-only arguments that the input names are written before. What is raised here leaves
        graph and record as they were.

        Args:
            dispatch_record: a copy of the record, with `op_cache_entry`, `args` and `kwargs`.
            update_input: what `update` was given for this call.
        """
        for kind, place, key in _specs_of(cls, dispatch_record.op_cache_entry):
            if key not in update_input:
                continue
            if kind == "kwarg":
                dispatch_record.kwargs[place] = update_input[key]
            elif isinstance(place, int) and place < len(dispatch_record.args):
                dispatch_record.args[place] = update_input[key]


def _specs_of(handler: type[GraphOpHandler], op: Any) -> Sequence[Spec]:
    schema = getattr(op, "_schema", None)
    if schema is None:  # of a unit test of a handler
        names: Sequence[str] = (op.__name__, op.__name__.partition(".")[0])
    else:
        names = _spellings(schema.name, schema.overload_name or "default")
    return _first_specs(handler, names)


def _first_specs(handler: type[GraphOpHandler], names: Sequence[str]) -> Sequence[Spec]:
    get = hook_of(handler, "get_update_specs")
    return next((specs for name in names if (specs := get(name))), ())


def _spellings(base: str, overload: str) -> tuple[str, ...]:
    """Return the names under which an operator may be registered, the most exact one first."""
    bare = base.partition("::")[2]
    return f"{base}.{overload}", base, f"{bare}.{overload}", bare


_HOOKS = ("prepare_capture", "postprocess_result", "record_wrap_kwarg", "update_args")
_logger = logging.getLogger(__name__)


def hook_of(handler: type[GraphOpHandler], name: str) -> Any:
    """Return a hook of a handler, which may be a class without the base."""
    if hasattr(handler, name):
        return getattr(handler, name)
    return inspect.getattr_static(GraphOpHandler, name).__get__(None, handler)


def variable_length(handler: type[GraphOpHandler]) -> frozenset[str]:
    """Return the keys of lists that may get another length."""
    return getattr(handler, "VARIABLE_LENGTH", frozenset())


H = TypeVar("H", bound=type[GraphOpHandler])

_registry: dict[str, type[GraphOpHandler]] = {}
graph_handlers: Mapping[str, type[GraphOpHandler]] = MappingProxyType(_registry)
"""The registered handlers by operator name; cannot be written."""


def register_graph_handler(op_names: str | Sequence[str]) -> Callable[[H], H]:
    """Return a class decorator that registers a handler for operators.

    Args:
        op_names: one name or several, each `"my_op"` (all overloads), `"my_op.default"`, or either
            with its namespace (`"mylib::my_op"`, `"mylib::my_op.out"`). The most exact name wins. A
            name that has a handler gets the new one, and the log a warning.

    Raises:
        TypeError: it decorates no class, a hook is no classmethod, a name is no string, or a spec
            is malformed.
        ValueError: a spec names an argument that the operator, which exists already, does not have.

    Examples:
        >>> from bringup import graphs
        >>> @graphs.register_npu_graph_handler("cumsum")  # torch_npu's names of the same
        ... class Handler(graphs.NpuGraphOpHandler):
        ...     UPDATE_SPECS = {"cumsum": [("arg", 1, "axis")]}
        >>> x, graph = torch.ones(2, 2), graphs.CapturedGraph()
        >>> with graphs.capture(graph):
        ...     y = torch.cumsum(x, 0)
        >>> _ = graph.update({"cumsum.axis": 1})
        >>> graph.replay()
        >>> y
        tensor([[1., 2.],
                [1., 2.]])
        >>> graphs.unregister_graph_handler("cumsum")
    """
    names = _names(op_names)

    def register(handler: H) -> H:
        _check_handler(handler, names)
        for name in names:
            former = _registry.get(name)
            if former is not None:
                _logger.warning(
                    "NpuGraphOpHandler for '%s' is being overridden: %s -> %s",
                    *(name, former.__name__, handler.__name__),
                )
            _registry[name] = handler
        return handler

    return register


def unregister_graph_handler(op_names: str | Sequence[str]) -> None:
    """Remove the handlers of these names. Graphs that are captured already keep theirs.

    Args:
        op_names: one name or several, as they were registered.

    Raises:
        TypeError: a name is no string.
        KeyError: a name has no handler; nothing was removed.
    """
    names = _names(op_names)
    for name in names:
        if name not in _registry:
            known = ", ".join(_registry) or "none"
            raise KeyError(f"'{name}' has no graph handler; there are: {known}")
    for name in names:
        _registry.pop(name, None)


@contextmanager
def graph_handler_scope(
    op_names: str | Sequence[str], handler: type[GraphOpHandler]
) -> Iterator[None]:
    """Register a handler for the time of a `with` block, in all threads, without a warning; what it
    takes the place of is back after it. Raises what `register_graph_handler` raises.

    Args:
        op_names: one name or several, as for `register_graph_handler`.
        handler: a subclass of `GraphOpHandler`.
    """
    names = _names(op_names)
    _check_handler(handler, names)
    former = {name: _registry.get(name) for name in names}
    _registry.update(dict.fromkeys(names, handler))
    try:
        yield
    finally:
        for name, before in former.items():
            if before is None:
                _registry.pop(name, None)
            else:
                _registry[name] = before


def _names(op_names: str | Sequence[str]) -> list[str]:
    names = [op_names] if isinstance(op_names, str) else list(op_names)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"register_graph_handler takes operator names, got {name!r}")
    return names


def _check_handler(handler: object, names: Sequence[str]) -> None:
    if not isinstance(handler, type):
        raise TypeError(f"a graph handler is a class, got {handler!r}")
    for hook in (*_HOOKS, "get_update_specs"):
        if not isinstance(inspect.getattr_static(handler, hook, classmethod(id)), classmethod):
            raise TypeError(
                f"{handler.__name__}.{hook} is no classmethod, and a capture calls the class:"
                " decorate it with @classmethod"
            )
    for specs in getattr(handler, "UPDATE_SPECS", {}).values():
        for spec in specs:
            _check_spec(handler, spec)
    for name in names:
        for schema in _schemas_of(name):
            for spec in hook_of(handler, "get_update_specs")(name):
                _check_spec(handler, spec)
                _check_place(handler, name, spec, schema)


def _schemas_of(name: str) -> list[Any]:
    """Return the schemas of the overload `"ns::op.overload"`, if it exists."""
    base, _, overload = name.partition(".")
    if "::" not in base or not overload:
        return []
    try:
        schema = torch._C._get_schema(base, "" if overload == "default" else overload)
    except RuntimeError:
        return []  # not defined yet: the capture tells
    return [schema]


def _check_place(handler: type[GraphOpHandler], name: str, spec: Spec, schema: Any) -> None:
    kind, place, key = spec
    names = [argument.name for argument in schema.arguments]
    fits = place in names if kind == "kwarg" else 0 <= int(place) < len(names)
    if not fits:
        listed = ", ".join(f"{i} '{argument}'" for i, argument in enumerate(names))
        raise ValueError(
            f"{handler.__name__}: '{key}' is {kind} {place!r} of {name}, which has {listed}"
        )


def takes_part(handler: type[GraphOpHandler]) -> bool:
    """Return whether a handler has a part in the capture or in updates beyond its specs."""
    own = (inspect.getattr_static(handler, hook, None) for hook in _HOOKS)
    ours = [inspect.getattr_static(GraphOpHandler, hook) for hook in _HOOKS]
    changed = any(hook not in (None, base) for hook, base in zip(own, ours, strict=True))
    return changed or hasattr(handler, "should_handle")


def updates_by_specs(handler: type[GraphOpHandler]) -> bool:
    """Return whether its updates are what its specs say."""
    base = inspect.getattr_static(GraphOpHandler, "update_args")
    return inspect.getattr_static(handler, "update_args", base) is base


def is_handled(handler: type[GraphOpHandler], func: Any, args: Any, kwargs: Any) -> bool:
    """Return whether a capture without gradients would have the handler take part in a call."""
    should_handle = getattr(handler, "should_handle", None)
    with torch.no_grad():
        return should_handle is None or bool(should_handle(func, args, kwargs))


def hooked_names() -> list[str]:
    """Return every operator name whose handler takes part in captures."""
    return [name for name, handler in _registry.items() if takes_part(handler)]


def _check_spec(handler: type[GraphOpHandler], spec: Spec) -> None:
    kinds = {"arg": int, "kwarg": str}
    well_formed = (
        isinstance(spec, tuple)
        and len(spec) == 3
        and isinstance(spec[1], kinds.get(spec[0], ()))
        and isinstance(spec[2], str)
    )
    if not well_formed:
        raise TypeError(
            f"{handler.__name__}.UPDATE_SPECS: a spec is ('arg', index, key) or"
            f" ('kwarg', name, key), got {spec!r}"
        )


@contextmanager
def handlers_of_block() -> Iterator[None]:
    """Undo at the end of the block what it registered, restoring replaced handlers."""
    former = dict(_registry)
    try:
        yield
    finally:
        _registry.clear()
        _registry.update(former)


def _adopted_names() -> Collection[str]:
    adopting = sys.modules.get("bringup.ops.integration.adopt")  # else nothing is adopted
    return () if adopting is None else adopting.adopted_names()


def registered_names() -> list[str]:
    """Return every operator name that has a handler, or a handle of `ops.adopt`."""
    return [*_registry, *_adopted_names()]


def gives_all_arguments(op: str) -> bool:
    """Return whether all host arguments of an operator without a handler can be updated."""
    return op in _adopted_names() or op in ("torch.cond", "torch.while_loop")


def handler_for(op: str) -> tuple[type[GraphOpHandler], Sequence[Spec]] | None:
    """Return the handler of `"ns::op"` or `"ns::op.overload"`, and its specs."""
    base, _, overload = op.partition(".")
    names = _spellings(base, overload or "default")
    for name in names:
        handler = _registry.get(name)
        if handler is not None:
            return handler, _first_specs(handler, names)
    return None
