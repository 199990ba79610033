"""An FX graph mirrored into ir, and edits of the mirror repeated on FX, which owns the truth."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from bringup import ir
from bringup.compiler.aten import AtenDialect, operator_of, ordinary_torch
from bringup.compiler.schema import in_schema_order, overload_of, signature_of
from bringup.errors import PassError

__all__ = ["Mirror"]

_PURE_MODULES = frozenset({"_operator", operator.__name__, math.__name__, "torch"})
_PURE_TORCH = frozenset(
    {"sym_float", "sym_int", "sym_ite", "sym_max", "sym_min", "sym_not", "sym_sqrt"}
)
_INHERITED = ("stack_trace", "nn_module_stack")


class Mirror:
    """An FX graph module and its mirror.

    Indexing a node with several outputs is folded in the mirror: its outputs are values of the node
    itself.

    Arguments:
        module: the FX graph; changed only by `commit`.
        foldable: names of attributes of the module that passes may fold as constants.
    """

    def __init__(self, module: Any, *, foldable: frozenset[str] = frozenset()) -> None:
        self.module = module
        self.changed = False
        nodes = list(module.graph.nodes)
        fakes = (_meta_of(node) for node in nodes)
        self._mode = next((fake.fake_mode for fake in fakes if isinstance(fake, FakeTensor)), None)
        self.graph = ir.Graph(type(module).__name__, AtenDialect(self._mode))
        self._foldable = foldable
        self._fx_nodes: dict[ir.Node, Any] = {}
        self._items: dict[ir.Value, list[Any]] = {}
        self._folded: dict[Any, ir.Node] = {}
        self._values: dict[Any, ir.Value] = {}
        for node in nodes:
            self._take(node)

    # FX to ir

    def _take(self, fx_node: Any) -> None:
        if fx_node.target is operator.getitem and fx_node.args[0] in self._folded:
            value = self._folded[fx_node.args[0]].outputs[fx_node.args[1]]
            self._values[fx_node] = value
            self._items.setdefault(value, []).append(fx_node)
            return
        node = self._adopt(fx_node)
        node.handle = fx_node
        node.meta.update({key: fx_node.meta[key] for key in _INHERITED if key in fx_node.meta})
        self._fx_nodes[node] = fx_node
        if len(node.outputs) == 1 and fx_node not in self._folded:
            self._values[fx_node] = node.output

    def _adopt(self, fx_node: Any) -> ir.Node:
        arguments = tuple(self._argument(argument) for argument in fx_node.args)
        keywords = {name: self._argument(argument) for name, argument in fx_node.kwargs.items()}
        if fx_node.op == "output":
            self.graph.set_outputs(*arguments)
            return self.graph.output_node
        metas: tuple[object, ...] = (_meta_of(fx_node),)
        if isinstance(fx_node.target, torch._ops.OpOverload):
            kind = operator_of(fx_node.target)
            if kind.output_count != 1:
                unfolded = metas
                metas = _metas_of_outputs(fx_node, kind)
                if metas is not unfolded:
                    node = self._add(fx_node, kind, arguments, keywords, metas)
                    self._folded[fx_node] = node
                    return node
                kind = ir.Operator(f"{kind.type} as a tuple", opaque=True)
        else:
            kind = _structure(fx_node)
        node = self._add(fx_node, kind, arguments, keywords, metas)
        if fx_node.op == "get_attr" and fx_node.target in self._foldable:
            node.payload = getattr(self.module, fx_node.target)
        return node

    def _add(
        self,
        fx_node: Any,
        kind: ir.Operator,
        arguments: tuple[object, ...],
        keywords: dict[str, object],
        metas: tuple[object, ...],
    ) -> ir.Node:
        if kind.parameters:
            arguments, keywords = in_schema_order(fx_node.target, arguments, keywords), {}
        metas = tuple(self._of_one_mode(meta) for meta in metas)
        return self.graph.adopt(fx_node.name, kind, arguments, keywords, metas)

    def _of_one_mode(self, meta: object) -> object:
        """Some tracers give every node a fake mode of its own; shapes are inferred under one."""
        if self._mode is None or not isinstance(meta, FakeTensor) or meta.fake_mode is self._mode:
            return meta
        with ordinary_torch(), self._mode:
            return torch.empty_strided(
                meta.shape, meta.stride(), dtype=meta.dtype, device=meta.device
            )

    def _argument(self, argument: Any) -> object:
        if isinstance(argument, fx.Node):
            return self._values[argument]
        if isinstance(argument, (tuple, list)):
            return tuple(self._argument(item) for item in argument)
        if isinstance(argument, dict):
            return {key: self._argument(item) for key, item in argument.items()}
        if isinstance(argument, slice):
            return slice(*map(self._argument, (argument.start, argument.stop, argument.step)))
        return argument

    # ir to FX

    def commit(self, edits: Sequence[ir.Edit]) -> None:
        """Repeat edits of the mirror on the FX graph. Checks first, so that it fails before the
        first edit.

        The module is not recompiled: that is done once, after all passes.
        """
        for edit in edits:
            self._check(edit)
        for edit in edits:
            self._repeat(edit)
        self.changed = self.changed or bool(edits)

    def finish(self) -> None:
        """After the last pass: write changed metas back, recompile, expire all handles."""
        if self.changed:
            for node, fx_node in self._fx_nodes.items():
                if node is not self.graph.output_node:
                    self._write_meta(node, fx_node)
            self.module.recompile()
        self.graph.expire()

    def _check(self, edit: ir.Edit) -> None:
        if isinstance(edit, ir.Insert) and edit.node._operator.type == ir.INPUT:
            raise PassError(
                f"a pass cannot give a compiled graph a new input ({edit.node._name!r})"
            )
        if isinstance(edit, ir.Erase) and edit.node._operator.type == ir.INPUT:
            raise PassError(
                f"a pass cannot remove an input of a compiled graph ({edit.node._name!r})"
            )
        if isinstance(edit, ir.Rewire) and edit.node is self.graph.output_node:
            before, after = (
                len(list(ir.values_in(item))) for item in (edit.old_arguments, edit.arguments)
            )
            if before != after:
                raise PassError(
                    f"a compiled graph has {before} outputs; a pass cannot change that to {after}"
                )

    def _repeat(self, edit: ir.Edit) -> None:
        if isinstance(edit, ir.Insert):
            with self.module.graph.inserting_before(self._fx_nodes[edit.before]):
                fx_node = self._create(edit.node, edit.arguments)
            edit.node.handle = fx_node
            self._fx_nodes[edit.node] = fx_node
        elif isinstance(edit, ir.Erase):
            fx_node = self._fx_nodes.pop(edit.node)
            for item in self._items_of(edit.node):
                self.module.graph.erase_node(item)
            self.module.graph.erase_node(fx_node)
        elif isinstance(edit, ir.Move):
            fx_node = self._fx_nodes[edit.node]
            self._fx_nodes[edit.before].prepend(fx_node)
            for item in self._items_of(edit.node):
                fx_node.append(item)
        else:
            self._rewire(edit)

    def _create(self, node: ir.Node, given: tuple[object, ...]) -> Any:
        graph = self.module.graph
        if node._operator.type == ir.CONSTANT:
            name = _free_name(self.module, node._name)
            self.module.register_buffer(name, node.payload, persistent=False)
            fx_node = graph.get_attr(name)
        else:
            overload = overload_of(node._operator.type)
            arguments, keywords = self._call_arguments(overload, given)
            fx_node = graph.call_function(overload, arguments, keywords, name=node._name)
        fx_node.meta.update({key: node.meta[key] for key in _INHERITED if key in node.meta})
        fx_node.meta["bringup"] = {
            key: item for key, item in node.meta.items() if key not in _INHERITED
        }
        self._write_meta(node, fx_node)
        return fx_node

    def _write_meta(self, node: ir.Node, fx_node: Any) -> None:
        if node._operator.output_count == 1:
            if node._outputs[0]._meta is not None:
                fx_node.meta["val"] = node._outputs[0]._meta
            return
        fx_node.meta["val"] = tuple(value._meta for value in node._outputs)
        for value in node._outputs:
            for item in self._items.get(value, ()):
                item.meta["val"] = value._meta

    def _call_arguments(
        self, overload: Any, arguments: tuple[object, ...]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """FX arguments for a call, as tracing writes them: what equals its default is left out."""
        positional: list[object] = []
        keywords: dict[str, object] = {}
        needed = 0
        for slot, argument in zip(signature_of(overload), arguments, strict=True):
            given = self._fx_argument(argument)
            omitted = slot.has_default and _is_default(slot.default, argument)
            if not slot.kwarg_only:
                positional.append(given)
                needed = needed if omitted else len(positional)
            elif not omitted:
                keywords[slot.name] = given
        return tuple(positional[:needed]), keywords

    def _rewire(self, edit: ir.Rewire) -> None:
        fx_node = self._fx_nodes[edit.node]
        if isinstance(fx_node.target, torch._ops.OpOverload) and edit.node._operator.parameters:
            fx_node.args, fx_node.kwargs = self._call_arguments(fx_node.target, edit.arguments)
            return
        old = [*ir.values_in(edit.old_arguments), *ir.values_in(dict(edit.old_keywords))]
        new = [*ir.values_in(edit.arguments), *ir.values_in(dict(edit.keywords))]
        exchange = {
            former: self._fx_value(after)
            for before, after in zip(old, new, strict=True)
            if before is not after
            for former in self._fx_values(before)
        }
        fx_node.args = fx.map_arg(fx_node.args, lambda item: exchange.get(item, item))
        fx_node.kwargs = fx.map_arg(fx_node.kwargs, lambda item: exchange.get(item, item))

    def _fx_argument(self, argument: object) -> object:
        if isinstance(argument, ir.Value):
            return self._fx_value(argument)
        if isinstance(argument, (tuple, list)):
            return [self._fx_argument(item) for item in argument]
        return argument

    def _fx_value(self, value: ir.Value) -> Any:
        fx_values = self._fx_values(value)
        if fx_values:
            return fx_values[0]
        fx_node = self._fx_nodes[value._node]
        with self.module.graph.inserting_after(fx_node):
            item = self.module.graph.call_function(operator.getitem, (fx_node, value._index))
        item.meta["val"] = value._meta
        self._items[value] = [item]
        return item

    def _fx_values(self, value: ir.Value) -> list[Any]:
        if value._node._operator.output_count == 1:
            return [self._fx_nodes[value._node]]
        return self._items.get(value, [])

    def _items_of(self, node: ir.Node) -> list[Any]:
        return [item for value in node._outputs for item in self._items.get(value, ())]


def _meta_of(fx_node: Any) -> object:
    meta = fx_node.meta.get("val")
    return fx_node.meta.get("example_value") if meta is None else meta


def _metas_of_outputs(fx_node: Any, kind: ir.Operator) -> tuple[object, ...]:
    """The metas of the outputs of a node that is only ever indexed, else its own meta alone."""
    meta = _meta_of(fx_node)
    indexed = all(
        user.target is operator.getitem
        and user.args[0] is fx_node
        and isinstance(user.args[1], int)
        for user in fx_node.users
    )
    if not indexed:
        return (meta,)
    if isinstance(meta, (tuple, list)):
        return tuple(meta)
    count = kind.output_count
    if count is None:
        count = max((user.args[1] for user in fx_node.users), default=-1) + 1
    return (None,) * count


def _structure(fx_node: Any) -> ir.Operator:
    """What a node is that calls no operator; unless known to be pure, nothing moves across it."""
    if fx_node.op == "placeholder":
        return ir.Operator(ir.INPUT)
    if fx_node.op == "get_attr":
        return ir.Operator(ir.CONSTANT)
    if fx_node.op != "call_function":
        return ir.Operator(f"fx::{fx_node.op}", opaque=True)
    module = getattr(fx_node.target, "__module__", "") or ""
    name = getattr(fx_node.target, "__name__", None) or str(fx_node.target)
    pure = module in _PURE_MODULES and (module != "torch" or name in _PURE_TORCH)
    return ir.Operator(f"python::{module}.{name}", opaque=not pure)


def _is_default(default: object, given: object) -> bool:
    if next(ir.values_in(given), None) is not None:
        return False
    return type(default) is type(given) and default == given


def _free_name(module: Any, base: str) -> str:
    name, number = base, 0
    while hasattr(module, name):
        number += 1
        name = f"{base}_{number}"
    return name
