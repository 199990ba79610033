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
from bringup.compiler.schema import Slot, in_schema_order, overload_of, signature_of
from bringup.errors import PassError

__all__ = ["Mirror"]

_PURE_MODULES = frozenset({"_operator", operator.__name__, math.__name__, "torch"})
_PURE_TORCH = frozenset(
    {"sym_float", "sym_int", "sym_ite", "sym_max", "sym_min", "sym_not", "sym_sqrt"}
)
_INHERITED = ("stack_trace", "nn_module_stack")


class Mirror:
    """An FX graph module and its mirror.

    The graph is read natively; what its nodes mean in Python (a target's operator, the description
    of a value) is asked when it is needed. Indexing a node with several outputs is folded in the
    mirror: its outputs are values of the node itself.

    Arguments:
        module: the FX graph; changed only by `commit`.
        foldable: names of attributes of the module that passes may fold as constants.
    """

    def __init__(self, module: Any, *, foldable: frozenset[str] = frozenset()) -> None:
        self.module = module
        self.changed = False
        mode = _mode_of(module.graph)
        self.graph = ir.Graph(type(module).__name__, AtenDialect(mode))
        self._core = self.graph.mirror(
            module.graph, fx.Node, operator.getitem, _Reader(mode), _INHERITED
        )
        for node in self.graph.find(ir.CONSTANT) if foldable else ():
            if node.handle.target in foldable:
                node.payload = getattr(module, node.handle.target)

    # ir to FX

    def commit(self, edits: Sequence[ir.Edit]) -> None:
        """Repeat edits of the mirror on the FX graph. Checks first, so that it fails before the
        first edit.

        The module is not recompiled: that is done once, after all passes.
        """
        listed = list(edits)
        for edit in listed:
            self._check(edit)
        for edit in listed:
            self._repeat(edit)
        self.changed = self.changed or bool(listed)

    def finish(self) -> None:
        """After the last pass: write changed metas back, recompile, expire all handles."""
        if self.changed:
            for node in {value.node: None for value in self._core.take_changed()}:
                self._write_meta(node, node.handle)
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
            with self.module.graph.inserting_before(edit.before.handle):
                edit.node.handle = self._create(edit.node, edit.arguments)
        elif isinstance(edit, ir.Erase):
            for item in self._items_of(edit.node):
                self.module.graph.erase_node(item)
            self.module.graph.erase_node(edit.node.handle)
        elif isinstance(edit, ir.Move):
            edit.before.handle.prepend(edit.node.handle)
            for item in self._items_of(edit.node):
                edit.node.handle.append(item)
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
            for item in self._core.items(value):
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
        fx_node = edit.node.handle
        swapped = _one_exchange(edit)
        if swapped is not None and len(self._fx_values(swapped[0])) == 1:
            before, after = swapped
            fx_node.replace_input_with(self._fx_value(before), self._fx_value(after))
            return
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
        fx_node = value._node.handle
        with self.module.graph.inserting_after(fx_node):
            item = self.module.graph.call_function(operator.getitem, (fx_node, value._index))
        item.meta["val"] = value._meta
        self._core.add_item(value, item)
        return item

    def _fx_values(self, value: ir.Value) -> list[Any]:
        if value._node._operator.output_count == 1:
            return [value._node.handle]
        return self._core.items(value)

    def _items_of(self, node: ir.Node) -> list[Any]:
        return [item for value in node._outputs for item in self._core.items(value)]


class _Reader:
    """Answers what the native reading of an FX graph asks; see native/python/engine_fx.h."""

    def __init__(self, mode: Any) -> None:
        self._mode = mode

    def describe(self, fx_node: Any) -> tuple[ir.Operator, tuple[Slot, ...] | None]:
        """What a node calls, and its schema if it has one."""
        if not isinstance(fx_node.target, torch._ops.OpOverload):
            return _structure(fx_node), None
        kind = operator_of(fx_node.target)
        return kind, signature_of(fx_node.target) if kind.parameters else None

    def fold(
        self, fx_node: Any, kind: ir.Operator
    ) -> tuple[ir.Operator, tuple[object, ...] | None]:
        """The metas of the outputs of a node that is only ever indexed; else the operator that
        gives them as one value, which nobody may look into.
        """
        indexed = all(
            user.target is operator.getitem
            and user.args[0] is fx_node
            and isinstance(user.args[1], int)
            for user in fx_node.users
        )
        if not indexed:
            return ir.Operator(f"{kind.type} as a tuple", opaque=True), None
        meta = _meta_of(fx_node)
        if isinstance(meta, (tuple, list)):
            return kind, tuple(self._of_one_mode(item) for item in meta)
        count = kind.output_count
        if count is None:
            count = max((user.args[1] for user in fx_node.users), default=-1) + 1
        return kind, (None,) * count

    def misfit(self, fx_node: Any) -> None:
        """Raises `SchemaError` that says why the arguments do not fit."""
        in_schema_order(fx_node.target, fx_node.args, fx_node.kwargs)

    def meta(self, fx_node: Any) -> object:
        """The description of the value of a node."""
        return self._of_one_mode(_meta_of(fx_node))

    def _of_one_mode(self, meta: object) -> object:
        """Some tracers give every node a fake mode of its own; shapes are inferred under one."""
        if self._mode is None or not isinstance(meta, FakeTensor) or meta.fake_mode is self._mode:
            return meta
        with ordinary_torch(), self._mode:
            return torch.empty_strided(
                meta.shape, meta.stride(), dtype=meta.dtype, device=meta.device
            )


def _meta_of(fx_node: Any) -> object:
    meta = fx_node.meta.get("val")
    return fx_node.meta.get("example_value") if meta is None else meta


def _mode_of(graph: Any) -> Any:
    """The fake mode of the first fake tensor that describes a node."""
    fakes = (_meta_of(node) for node in graph.nodes)
    return next((fake.fake_mode for fake in fakes if isinstance(fake, FakeTensor)), None)


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


def _one_exchange(edit: ir.Rewire) -> tuple[ir.Value, ir.Value] | None:
    """The value read before and the one read now, when this is all that a rewiring changed: every
    read of the one became a read of the other.
    """
    if edit.old_keywords or edit.keywords or len(edit.old_arguments) != len(edit.arguments):
        return None
    found: tuple[ir.Value, ir.Value] | None = None
    kept: list[object] = []
    for before, after in zip(edit.old_arguments, edit.arguments, strict=True):
        if isinstance(before, ir.Value) and isinstance(after, ir.Value) and before is not after:
            if found is not None and found != (before, after):
                return None
            found = before, after
        elif before is after or (type(before) is type(after) and before == after):
            kept.append(before)
        else:
            return None
    if found is None or any(value is found[0] for value in ir.values_in(kept)):
        return None
    return found


def _free_name(module: Any, base: str) -> str:
    name, number = base, 0
    while hasattr(module, name):
        number += 1
        name = f"{base}_{number}"
    return name
