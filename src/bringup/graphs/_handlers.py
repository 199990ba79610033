"""Handlers: which arguments of an operator a captured graph lets you update, and under which keys.

The registry has torch_npu's shape: a class with `UPDATE_SPECS`, registered under operator names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar, TypeVar

from bringup.ops.integration.adopt import adopted_names

__all__ = [
    "GraphOpHandler",
    "Spec",
    "gives_all_arguments",
    "handler_for",
    "handlers_of_block",
    "register_graph_handler",
    "registered_names",
]

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
        """The specs of `op_name`, one of the registered names; none when `UPDATE_SPECS` does
        not list it.
        """
        return cls.UPDATE_SPECS.get(op_name, ())


H = TypeVar("H", bound=type[GraphOpHandler])

_registry: dict[str, type[GraphOpHandler]] = {}


def register_graph_handler(op_names: str | Sequence[str]) -> Callable[[H], H]:
    """A class decorator that registers a handler for operators.

    Args:
        op_names: one name or several, each `"my_op"` (all overloads), `"my_op.default"`, or either
            with its namespace (`"mylib::my_op"`, `"mylib::my_op.out"`). The most exact name wins. A
            name that has a handler gets the new one.

    Raises:
        TypeError: the decorated class is no `GraphOpHandler`, a name is no string, or a spec is
            malformed.
    """
    names = [op_names] if isinstance(op_names, str) else list(op_names)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"register_graph_handler takes operator names, got {name!r}")

    def register(handler: H) -> H:
        if not (isinstance(handler, type) and issubclass(handler, GraphOpHandler)):
            raise TypeError(f"a graph handler is a subclass of GraphOpHandler, got {handler!r}")
        for specs in handler.UPDATE_SPECS.values():
            for spec in specs:
                _check_spec(handler, spec)
        _registry.update(dict.fromkeys(names, handler))
        return handler

    return register


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
    """Handlers that are registered in the block are gone after it, those they replaced are back."""
    former = dict(_registry)
    try:
        yield
    finally:
        _registry.clear()
        _registry.update(former)


def registered_names() -> list[str]:
    """Every operator name that has a handler, or whose operator `ops.adopt` has a handle on."""
    return [*_registry, *adopted_names()]


def gives_all_arguments(op: str) -> bool:
    """Whether all host arguments of an operator without a handler can be updated."""
    return op in adopted_names()


def handler_for(op: str) -> tuple[type[GraphOpHandler], Sequence[Spec]] | None:
    """The handler of an operator named as torch does (`"ns::op"` or `"ns::op.overload"`), and its
    specs.
    """
    base, _, overload = op.partition(".")
    bare = base.partition("::")[2]
    full = f".{overload or 'default'}"
    for name in (base + full, base, bare + full, bare):
        handler = _registry.get(name)
        if handler is not None:
            specs = next(
                (
                    s
                    for n in (base + full, base, bare + full, bare)
                    if (s := handler.get_update_specs(n))
                ),
                (),
            )
            return handler, specs
    return None
