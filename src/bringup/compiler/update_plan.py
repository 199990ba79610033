"""Which inputs of a compiled graph are only host arguments: an update writes them in captures."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_symbols

from bringup._native import torch_library
from bringup._numbers import identity
from bringup.errors import UpdateError
from bringup.graphs import BoundPlan, CapturedGraph, Constant, Input, PlannedCall, UpdatePlan
from bringup.graphs._handlers import handler_for, is_handled, updates_by_specs
from bringup.graphs._pieces import SplitPoint, SplitPoints
from bringup.graphs._plans import Source

_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float)
_NOWHERE = SplitPoints(None)
_CONSTANTS = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Updates:
    """What a compiled graph writes into captures; only the plan brings `free` inputs to users."""

    plan: UpdatePlan
    free: frozenset[int]

    def host_reads(self, inputs: Sequence[Any]) -> int:
        """Return how many arguments of calls are the values of tensors among these inputs."""
        sources = [source for call in self.plan.calls for source in call.updates.values()]
        indices = [source.index for source in sources if isinstance(source, Input)]
        return sum(isinstance(inputs[index], torch.Tensor) for index in indices)

    def bind(self, graph: CapturedGraph, inputs: Sequence[Any]) -> BoundPlan:
        """Return the plan for a capture of a call with these inputs, or raise `UpdateError`."""
        bound = self.plan.bind(graph)
        slots = graph.slots
        for name, given in bound.slots(inputs).items():
            value = given.tolist() if isinstance(given, torch.Tensor) else given
            if identity(slots[name].value) != identity(value):
                raise UpdateError(
                    f"update plan: slot '{name}' is {value!r} by the plan, and the graph captured"
                    f" {slots[name].value!r}"
                )
        return bound


def updates_of(graph: Any, split_at: Sequence[SplitPoint] = ()) -> Updates | None:
    """Return the updates of an `fx.GraphModule`, or None; `split_at` as its captures get it."""
    split = SplitPoints(split_at)
    plan = update_plan(graph, split)
    if plan is None:
        return None
    free = free_inputs(graph, plan, split)
    placeholders = graph.graph.find_nodes(op="placeholder")
    has_tensors = any(_is_on_host(placeholders[index]) for index in plan.inputs)
    return Updates(plan, free) if free or has_tensors else None


def update_plan(graph: Any, split: SplitPoints = _NOWHERE) -> UpdatePlan | None:
    """Return what each call of an `fx.GraphModule` of overloads that has slots in a capture gets,
    or None where no input of the graph is among it.

    Arguments that are computed from inputs are left out: their values belong to the kind of a call.
    The calls are those of kernel operators, of operators at whose names captures are `split`, and
    of operators with a handler, where its hooks leave updates to its specs.
    """
    positions = _positions(graph)
    calls = (planned_call(node, positions, split) for node in graph.graph.nodes)
    plan = UpdatePlan(tuple(call for call in calls if call is not None))
    return plan if plan.inputs else None


def planned_call(
    node: fx.Node, positions: dict[fx.Node, int], split: SplitPoints = _NOWHERE
) -> PlannedCall | None:
    """Return what a call gets for the positions of inputs: its handler's sources and keywords."""
    keys, declared = _keys_of(node, split)
    updates: dict[str, Source] = {}
    for index, key in keys.items():
        source = _source(_given(node, index), positions)
        if source is not None and (index in declared or _has_input(source)):
            updates[key] = source
    return PlannedCall(_name(node), updates) if updates else None


def _has_input(source: Source) -> bool:
    return any(isinstance(x, Input) for x in (source if isinstance(source, tuple) else (source,)))


def free_inputs(graph: Any, plan: UpdatePlan, split: SplitPoints = _NOWHERE) -> frozenset[int]:
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
        and not _is_on_host(node)
        and not free_symbols(node.meta["val"]) & in_shapes
        and all(_is_planned(node, user, positions, split) for user in node.users)
    )


def _is_planned(
    node: fx.Node, user: fx.Node, positions: dict[fx.Node, int], split: SplitPoints
) -> bool:
    """Return whether the plan has every argument of `user` in which `node` is."""
    keys, _ = _keys_of(user, split)
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
    """Return the inputs of the graph that are numbers, or tensors of the host."""
    placeholders = enumerate(graph.graph.find_nodes(op="placeholder"))
    return {
        node: index
        for index, node in placeholders
        if isinstance(node.meta.get("val"), _NUMBERS) or _is_on_host(node)
    }


def _is_on_host(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


def _name(node: fx.Node) -> str:
    schema = node.target._schema
    return str(schema.name) + (f".{schema.overload_name}" if schema.overload_name else "")


def _keys_of(node: fx.Node, split: SplitPoints) -> tuple[dict[int, str], Collection[int]]:
    """Return a call's arguments that become slots by schema index, and the declared ones."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return {}, ()
    schema = node.target._schema
    is_kernel, arguments = torch_library("an update plan").graphs.host_arguments(
        schema.name, schema.overload_name
    )
    places = {index: name for index, name, _ in arguments}
    found = handler_for(_name(node))
    is_eager = split.splits(node.target)
    if found is None:
        return (places, places) if is_kernel or is_eager else ({}, ())
    handler, specs = found
    if not updates_by_specs(handler) or not is_handled(handler, node.target, *_values_of(node)):
        return {}, ()
    names = {argument.name: index for index, argument in enumerate(schema.arguments)}
    named = ((names.get(x, -1) if isinstance(x, str) else x, key) for _, x, key in specs)
    declared = {index: key for index, key in named if index in names.values()}
    keys = {i: name for i, name in places.items() if is_eager or schema.arguments[i].kwarg_only}
    keys.update(
        (index, key)
        for index, key in declared.items()
        if index in places or _is_read_by_host(node, index)
    )
    return keys, declared


def _is_read_by_host(node: fx.Node, index: int) -> bool:
    """Return whether an argument is a tensor of the host, and the call's first is none."""
    return _is_on_host(_given(node, index)) and not _is_on_host(_given(node, 0))


def _values_of(node: fx.Node) -> tuple[Any, Any]:
    """Return a call's arguments as a capture would get them, but for what tensors hold."""

    def value(source: fx.Node) -> Any:
        found = source.meta.get("val")
        is_symbol = isinstance(found, (torch.SymInt, torch.SymFloat, torch.SymBool))
        return found.node.hint if is_symbol else found

    return fx.node.map_arg(node.args, value), fx.node.map_arg(node.kwargs, value)


def _given(node: fx.Node, index: int) -> Any:
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
