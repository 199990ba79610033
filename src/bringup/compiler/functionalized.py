"""Calls of operators that write, as AOT autograd wraps them, and their calls by themselves again.

`auto_functionalized(op, x=x)` and `auto_functionalized_v2(op, _all_bases=[x])` write copies and
return these behind the operator's own results. What stands for one here writes an operand where it
lies where that was found to be right (`Wrapped.in_place`, or an intermediate that nothing reads any
more), and a copy otherwise.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import fx
from torch._higher_order_ops.auto_functionalize import (
    AliasViewInfo,
    AsStridedViewInfo,
    NotView,
    SliceViewInfo,
    get_mutable_args,
    read_view_information_from_args,
)
from torch._library.utils import is_inplace, is_out
from torch._prims_common import is_non_overlapping_and_dense_or_false

_ATEN = torch.ops.aten
_NAMES = ("auto_functionalized", "auto_functionalized_v2")
_IN_PLACE = "bringup_in_place"


@dataclass(frozen=True)
class Wrapped:
    """One wrapped call: `node` calls `op`."""

    node: fx.Node
    op: Any

    @cached_property
    def has_bases(self) -> bool:
        return "_all_bases" in self.node.kwargs

    @cached_property
    def written_names(self) -> list[str]:
        return list(get_mutable_args(self.op)[0])

    @property
    def operands(self) -> list[Any]:
        if self.has_bases:
            return list(self.node.kwargs["_all_bases"])
        return [self.node.kwargs[name] for name in self.written_names]

    @property
    def first_written(self) -> int:
        """Return the position of the first written operand among the results of the node."""
        return max(1, len(self.op._schema.returns))

    @property
    def in_place(self) -> set[int]:
        """Return the numbers of the operands that are written where they lie."""
        found: set[int] = self.node.meta.setdefault(_IN_PLACE, set())
        return found

    def reads_but(self, number: int) -> list[fx.Node]:
        """Return all operands of the node, repeated ones too, without written operand `number`."""
        found: list[fx.Node] = []
        fx.map_arg((self.node.args, self.node.kwargs), found.append)
        fx.map_arg(self.operands[number], found.remove)
        return found

    def results(self, position: int) -> list[fx.Node]:
        return [user for user in self.node.users if user.args[1] == position]


def wrapped(node: Any) -> Wrapped | None:
    """Return the call of an operator that is wrapped by a node, if it is one."""
    target = getattr(node, "target", None)
    if not isinstance(target, torch._ops.HigherOrderOperator) or target.name() not in _NAMES:
        return None
    op = node.args[0]
    return Wrapped(node, op) if isinstance(op, torch._ops.OpOverload) else None


def written_operand(node: Any) -> tuple[Wrapped, int] | None:
    """Return the wrapped call and operand number whose new content a node has."""
    if getattr(node, "target", None) is not operator.getitem:
        return None
    call = wrapped(node.args[0])
    if call is None or is_out(call.op) or node.args[1] < call.first_written:
        return None
    return call, node.args[1] - call.first_written


def unwrap(module: Any, is_dead_after: Callable[[fx.Node, Wrapped, int], bool]) -> int:
    """Let a graph of ATen operators, after the last pass, call wrapped operators that write.

    `is_dead_after` tells whether the memory of a call's operand is the graph's own and not read
    behind the call. Returns how many calls there were.
    """
    calls = [call for node in module.graph.nodes if (call := wrapped(node)) is not None]
    for call in calls:
        for number, operand in enumerate(() if is_out(call.op) else call.operands):
            if isinstance(operand, fx.Node) and is_dead_after(operand, call, number):
                call.in_place.add(number)
        with module.graph.inserting_before(call.node):
            _unwrap(call)
        for user in list(call.node.users):
            module.graph.erase_node(user)
        module.graph.erase_node(call.node)
    if calls:
        module.recompile()
    return len(calls)


def _unwrap(call: Wrapped) -> None:
    graph = call.node.graph
    given = {key: item for key, item in call.node.kwargs.items() if key != "_all_bases"}
    if is_out(call.op):
        written = [_empty(graph, given, name) for name in call.written_names]
        given.update(zip(call.written_names, written, strict=True))
        _called(graph, call.op, given)
        _hand_out_written(call, written)
        return
    written = [
        operand if number in call.in_place else _copied(graph, operand)
        for number, operand in enumerate(call.operands)
    ]
    if call.has_bases:
        given.update(_views(graph, call, given, written))
    else:
        given.update(zip(call.written_names, written, strict=True))
    names = {argument.name for argument in call.op._schema.arguments}
    returned = _called(graph, call.op, {key: given[key] for key in given if key in names})
    _hand_out(call, returned, given, written)


def _called(graph: fx.Graph, op: Any, given: Mapping[str, Any]) -> fx.Node:
    arguments = op._schema.arguments
    by_position = [item.name for item in arguments if not item.kwarg_only]
    by_name = {item.name: given[item.name] for item in arguments if item.kwarg_only}
    return graph.call_function(op, tuple(given[name] for name in by_position), by_name)


def _hand_out_written(call: Wrapped, written: Sequence[fx.Node]) -> None:
    """Give the results of an operator of `out=` form to their readers."""
    if len(written) == 1:
        call.node.replace_all_uses_with(written[0])
        return
    for position, item in enumerate(written):
        for user in call.results(position):
            user.replace_all_uses_with(item)


def _hand_out(
    call: Wrapped, returned: fx.Node, given: Mapping[str, Any], written: Sequence[Any]
) -> None:
    """Give the results of an operator, and what it wrote, to their readers."""
    count = len(call.op._schema.returns)
    for position in range(call.first_written + len(written)):
        for user in call.results(position):
            if position >= call.first_written:
                _exchange(user, written[position - call.first_written])
            elif is_inplace(call.op):  # it returns what it writes
                user.replace_all_uses_with(given[call.written_names[0]])
            elif count == 1:
                user.replace_all_uses_with(returned)
            else:
                with user.graph.inserting_before(call.node):
                    item = user.graph.call_function(operator.getitem, (returned, position))
                item.meta.update(user.meta)
                user.replace_all_uses_with(item)


def _exchange(user: fx.Node, written: Any) -> None:
    """Let readers of `user` read what was written, which may be a list of nodes."""
    if isinstance(written, fx.Node):
        user.replace_all_uses_with(written)
        return
    for item in list(user.users):  # of a list: each is indexed
        item.replace_all_uses_with(written[item.args[1]])
        item.graph.erase_node(item)


def _empty(graph: fx.Graph, given: dict[str, Any], name: str) -> fx.Node:
    size, stride, dtype, device = (
        given.pop(f"_{name}_{what}") for what in ("size", "stride", "dtype", "device")
    )
    return graph.call_function(
        _ATEN.empty_strided.default, (size, stride), {"dtype": dtype, "device": device}
    )


def _copied(graph: fx.Graph, operand: Any) -> Any:
    if isinstance(operand, (list, tuple)):
        return [_copied(graph, item) for item in operand]
    if operand is None:
        return None
    value = operand.meta["val"]
    if not value._has_symbolic_sizes_strides and is_non_overlapping_and_dense_or_false(value):
        copy = graph.call_function(_ATEN.clone.default, (operand,))
    else:
        sizes = _numbers(graph, _ATEN.sym_size.int, operand, value.shape)
        strides = _numbers(graph, _ATEN.sym_stride.int, operand, value.stride())
        arguments = (operand, sizes, strides)
        copy = graph.call_function(_ATEN.new_empty_strided.default, arguments)
        graph.call_function(_ATEN.copy_.default, (copy, operand))
    copy.meta["val"] = value
    return copy


def _numbers(graph: fx.Graph, op: Any, operand: fx.Node, values: Sequence[Any]) -> list[Any]:
    return [
        value if isinstance(value, int) else graph.call_function(op, (operand, dim))
        for dim, value in enumerate(values)
    ]


def _views(
    graph: fx.Graph, call: Wrapped, given: dict[str, Any], written: Sequence[Any]
) -> Iterator[tuple[str, Any]]:
    """Yield the written arguments: views of `written`, as the node has them of its operands."""
    names, types = get_mutable_args(call.op)
    infos = read_view_information_from_args(names, types, given, call.operands)
    for name in names:
        info = infos[name]
        if isinstance(info, list):
            yield name, [_view(graph, call, item, written) for item in info]
        else:
            yield name, _view(graph, call, info, written)


def _view(graph: fx.Graph, call: Wrapped, info: Any, written: Sequence[Any]) -> Any:
    if info is None:
        return None
    base = written[info.base_index]
    if isinstance(info, (NotView, AliasViewInfo)):
        return base
    if isinstance(info, SliceViewInfo):
        return graph.call_function(_ATEN.slice.Tensor, (base, info.dim, info.start, info.end))
    assert isinstance(info, AsStridedViewInfo), info
    offset = _offset(graph, call.operands[info.base_index], base, info.storage_offset)
    arguments = (base, list(info.size), list(info.stride), offset)
    return graph.call_function(_ATEN.as_strided.default, arguments)


def _offset(graph: fx.Graph, operand: fx.Node, base: fx.Node, traced: Any) -> Any:
    """Return the offset of a view traced at `traced`: inputs may begin anywhere, copies at 0."""
    begin = operand.meta["val"].storage_offset()
    if not isinstance(begin, int):  # then the offset is computed from that of the input
        if base is operand:
            return traced
        now = graph.call_function(_ATEN.sym_storage_offset.default, (operand,))
        return graph.call_function(operator.sub, (traced, now))
    inner = _sum(graph, traced, -begin)
    if base is not operand:
        return inner
    return _sum(graph, graph.call_function(_ATEN.sym_storage_offset.default, (base,)), inner)


def _sum(graph: fx.Graph, one: Any, other: Any) -> Any:
    if isinstance(one, int) and isinstance(other, int):
        return one + other
    return one if other == 0 else graph.call_function(operator.add, (one, other))
