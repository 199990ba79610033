"""Which inputs of a compiled graph are only host arguments: an update writes them in captures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_symbols

from bringup._native import torch_library
from bringup._numbers import identity
from bringup.errors import UpdateError
from bringup.graphs import BoundPlan, CapturedGraph, Constant, Input, PlannedCall, UpdatePlan
from bringup.graphs._handlers import handler_for, takes_part
from bringup.graphs._plans import Source

_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float)
_CONSTANTS = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Updates:
    """What a compiled graph writes into captures; only the plan brings `free` inputs to users."""

    plan: UpdatePlan
    free: frozenset[int]

    def bind(self, graph: CapturedGraph, inputs: Sequence[Any]) -> BoundPlan:
        """Return the plan for a capture of a call with these inputs, or raise `UpdateError`."""
        bound = self.plan.bind(graph)
        slots = graph.slots
        for name, value in bound.slots(inputs).items():
            if identity(slots[name].value) != identity(value):
                raise UpdateError(
                    f"update plan: slot '{name}' is {value!r} by the plan, and the graph captured"
                    f" {slots[name].value!r}"
                )
        return bound


def updates_of(graph: Any) -> Updates | None:
    """Return the updates of an `fx.GraphModule` of overloads, or None without any."""
    plan = update_plan(graph)
    free = frozenset() if plan is None else free_inputs(graph, plan)
    return Updates(plan, free) if plan is not None and free else None


def update_plan(graph: Any) -> UpdatePlan | None:
    """Return what each call of an `fx.GraphModule` of overloads that has slots in a capture gets,
    or None where no input of the graph is among it.

    Arguments that are computed from inputs are left out: their values belong to the kind of a call.
    The calls are those of kernel operators and of operators with a handler that has specs only; one
    that takes part in captures decides by itself what it captures.
    """
    positions = _positions(graph)
    calls = []
    for node in graph.graph.nodes:
        updates = {
            key: source
            for index, key in _keys_of(node).items()
            if (source := _source(_given(node, index), positions)) is not None
        }
        if updates:
            calls.append(PlannedCall(_name(node), updates))
    plan = UpdatePlan(tuple(calls))
    return plan if plan.inputs else None


def free_inputs(graph: Any, plan: UpdatePlan) -> frozenset[int]:
    """Return the inputs that only the plan brings to users, and that no tensor's shape needs."""
    positions = _positions(graph)
    in_shapes = {
        symbol
        for node in graph.graph.nodes
        if isinstance(value := node.meta.get("val"), (torch.Tensor, list, tuple))
        for symbol in free_symbols(value)
    }
    return frozenset(
        index
        for node, index in positions.items()
        if index in plan.inputs
        and not free_symbols(node.meta["val"]) & in_shapes
        and all(_is_planned(node, user, positions) for user in node.users)
    )


def _is_planned(node: fx.Node, user: fx.Node, positions: dict[fx.Node, int]) -> bool:
    """Return whether the plan has every argument of `user` in which `node` is."""
    keys = _keys_of(user)
    if not keys:
        return False
    count = len(user.target._schema.arguments)
    given = [(index, _given(user, index)) for index in range(count)]
    return all(
        index in keys and _source(value, positions) is not None
        for index, value in given
        if value is node or (isinstance(value, (list, tuple)) and node in value)
    )


def _positions(graph: Any) -> dict[fx.Node, int]:
    """Return the inputs of the graph that are numbers."""
    placeholders = enumerate(graph.graph.find_nodes(op="placeholder"))
    return {
        node: index for index, node in placeholders if isinstance(node.meta.get("val"), _NUMBERS)
    }


def _name(node: fx.Node) -> str:
    schema = node.target._schema
    return str(schema.name) + (f".{schema.overload_name}" if schema.overload_name else "")


def _keys_of(node: fx.Node) -> dict[int, str]:
    """Return the arguments of a call that become slots, as keys by index in the schema."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return {}
    schema = node.target._schema
    is_kernel, arguments = torch_library("an update plan").graphs.host_arguments(
        schema.name, schema.overload_name
    )
    found = handler_for(_name(node))
    if found is None:
        return {index: name for index, name, _ in arguments} if is_kernel else {}
    handler, specs = found
    if takes_part(handler):
        return {}
    named = {name: index for index, name, _ in arguments}
    places = {index: name for index, name, _ in arguments}
    keyword_only = {argument.name for argument in schema.arguments if argument.kwarg_only}
    keys = {named[name]: name for name in keyword_only & named.keys()}
    for _, place, key in specs:
        index = named.get(place) if isinstance(place, str) else place
        if index in places:
            keys[index] = key
    return keys


def _given(node: fx.Node, index: int) -> Any:
    """Return what the call has for an argument of its schema."""
    argument = node.target._schema.arguments[index]
    if argument.name in node.kwargs:
        return node.kwargs[argument.name]
    return node.args[index] if index < len(node.args) else argument.default_value


def _source(value: Any, positions: dict[fx.Node, int]) -> Source | None:
    """Return where an argument comes from; None for what the graph computes or plans exclude."""
    if not isinstance(value, (list, tuple)):
        return _element(value, positions)
    items = [_element(item, positions) for item in value]
    return None if None in items else tuple(item for item in items if item is not None)


def _element(value: Any, positions: dict[fx.Node, int]) -> Input | Constant | None:
    if isinstance(value, fx.Node):
        return Input(positions[value]) if value in positions else None
    return Constant(value) if isinstance(value, _CONSTANTS) else None
