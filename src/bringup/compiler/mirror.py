"""An FX graph mirrored into ir, and edits of the mirror repeated on FX, which owns the truth."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from bringup import ir
from bringup._numbers import same_number
from bringup.compiler.aten import AtenDialect, operator_of, ordinary_torch
from bringup.compiler.schema import SchemaParameter, in_schema_order, overload_of, signature_of
from bringup.compiler.sizes import ARITHMETIC
from bringup.ir.edits import Journal
from bringup.ir.node import values_in

if TYPE_CHECKING:
    from bringup.ir._engine import GraphCore

_COPYING = frozenset({"auto_functionalized", "auto_functionalized_v2"})
"""Write copies of the operands, whatever the operator that they call writes."""
_FUNCTIONAL = frozenset(
    {
        *("with_effects", "triton_kernel_wrapper_functional", "out_dtype"),
        *("cond", "while_loop", "while_loop_stack_output"),
        *("scan", "map_impl", "associative_scan"),
        *("invoke_subgraph", "flex_attention", "flex_attention_backward"),
    }
)
"""Write nothing and return new memory where the graphs that they call do."""


def writes_nothing(node: fx.Node) -> bool:
    """Return whether a higher-order call writes no operand and returns its own memory."""
    name = node.target.name()
    if name in _COPYING:
        return True
    if name not in _FUNCTIONAL:
        return False
    owner = node.graph.owning_module
    operands = [item for item in node.all_input_nodes if item.op == "get_attr"]
    bodies = [getattr(owner, str(item.target), None) for item in operands]
    return all(_is_functional(body) for body in bodies if isinstance(body, fx.GraphModule))


def _is_functional(body: fx.GraphModule) -> bool:
    results = body.graph.output_node().all_input_nodes
    return all(map(_only_computes, body.graph.nodes)) and not any(map(_may_alias, results))


def _only_computes(node: fx.Node) -> bool:
    if node.op != "call_function":
        return node.op in ("placeholder", "get_attr", "output")
    if isinstance(node.target, torch._ops.OpOverload):
        return not node.target._schema.is_mutable
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return writes_nothing(node)
    return getattr(node.target, "__module__", None) in ("_operator", "math", "torch")


def _may_alias(node: fx.Node) -> bool:
    """Return whether a result of a body may be an operand of it, or a view of one."""
    if node.target is operator.getitem:
        return _may_alias(node.args[0])
    if node.op != "call_function":
        return not isinstance(node.meta.get("val"), (int, torch.SymInt))
    if isinstance(node.target, torch._ops.OpOverload):
        return any(item.alias_info is not None for item in node.target._schema.returns)
    return False


_PURE_MODULES = frozenset({"_operator", operator.__name__, math.__name__, "torch"})
_PURE_TORCH = frozenset(
    {"sym_float", "sym_int", "sym_ite", "sym_max", "sym_min", "sym_not", "sym_sqrt"}
)
_INHERITED = ("stack_trace", "nn_module_stack")

_Slots: TypeAlias = list[tuple[str, bool, bool, object]]
"""Name, whether by keyword only, whether it has a default, and which."""


class Mirror:
    """An FX graph module, changed only by `commit`, and its mirror.

    The graph is read natively; what its nodes mean in Python (a target's operator, the description
    of a value) is asked when it is needed. Indexing a node with several outputs is folded in the
    mirror: its outputs are values of the node itself. Passes may fold attributes named `foldable`.
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

    def commit(self, edits: Journal) -> None:
        """Repeat the mirror's edits on the FX graph, checked before the first; no recompile."""
        edits.repeat_on_fx(self.module.graph, _Writer(self.module, self._core))
        self.changed = self.changed or bool(edits)

    def finish(self) -> None:
        """After the last pass: write changed metas back, recompile, expire all handles."""
        if self.changed:
            writer = _Writer(self.module, self._core)
            for node in {value.node: None for value in self._core.take_changed()}:
                writer.write_meta(node, node.handle)
            self.module.recompile()
        self.graph.expire()


class _Writer:
    """Repeats on FX what needs Python; see native/python/engine_fx.h."""

    def __init__(self, module: Any, core: GraphCore) -> None:
        self._module = module
        self._graph = module.graph
        self._core = core
        self._targets: dict[str, tuple[Any, _Slots]] = {}

    def create(self, node: ir.Node, before: Any, given: tuple[object, ...]) -> Any:
        """Return a new node in front of `before`, with arguments of torch.fx."""
        with self._graph.inserting_before(before):
            is_constant = node._operator.type == ir.CONSTANT
            made = self._constant(node) if is_constant else self._call(node, given)
        meta = node.meta
        made.meta.update({key: meta[key] for key in _INHERITED if key in meta})
        made.meta["bringup"] = {key: item for key, item in meta.items() if key not in _INHERITED}
        self.write_meta(node, made)
        return made

    def move(self, node: ir.Node, before: Any) -> None:
        """Let a node, and what indexes it, stand in front of `before`."""
        before.prepend(node.handle)
        for value in node._outputs:
            for item in self._core.items(value):
                node.handle.append(item)

    def rewire(
        self,
        node: ir.Node,
        old_arguments: tuple[object, ...],
        old_keywords: Mapping[str, object],
        arguments: tuple[object, ...],
        keywords: Mapping[str, object],
    ) -> None:
        fx_node = node.handle
        if isinstance(fx_node.target, torch._ops.OpOverload) and node._operator.parameters:
            given = tuple([self._argument(item) for item in arguments])
            fx_node.args, fx_node.kwargs = as_traced(_slots_of(fx_node.target), given)
            return
        old = [*values_in(old_arguments), *values_in(dict(old_keywords))]
        new = [*values_in(arguments), *values_in(dict(keywords))]
        exchanged = iter(
            [None if old is new else self.value(new) for old, new in zip(old, new, strict=True)]
        )

        def exchange(item: Any) -> Any:  # place by place: a value may be read at several
            other = next(exchanged)
            return item if other is None else other

        args, kwargs = fx.map_arg((fx_node.args, fx_node.kwargs), exchange)
        fx_node.args, fx_node.kwargs = args, kwargs

    def value(self, value: ir.Value) -> Any:
        """Return what stands for a value; made where there is none."""
        found = self._values(value)
        if found:
            return found[0]
        fx_node = value._node.handle
        with self._graph.inserting_after(fx_node):
            item = self._graph.call_function(operator.getitem, (fx_node, value._index))
        item.meta["val"] = value._meta
        self._core.add_item(value, item)
        return item

    def write_meta(self, node: ir.Node, fx_node: Any) -> None:
        outputs = node._outputs
        if node._operator.output_count == 1:
            if outputs[0]._meta is not None:
                fx_node.meta["val"] = outputs[0]._meta
            return
        fx_node.meta["val"] = tuple(value._meta for value in outputs)
        for value in outputs:
            for item in self._core.items(value):
                item.meta["val"] = value._meta

    def _constant(self, node: ir.Node) -> Any:
        name = _free_name(self._module, node._wanted_name)
        self._module.register_buffer(name, node.payload, persistent=False)
        return self._graph.get_attr(name)

    def _call(self, node: ir.Node, given: tuple[object, ...]) -> Any:
        kind = node._operator.type
        if kind in ARITHMETIC:
            return self._graph.call_function(ARITHMETIC[kind], given, name=node._wanted_name)
        found = self._targets.get(kind)
        if found is None:
            overload = overload_of(kind)
            found = self._targets[kind] = overload, _slots_of(overload)
        overload, slots = found
        arguments, keywords = as_traced(slots, given)
        return self._graph.call_function(overload, arguments, keywords, name=node._wanted_name)

    def _argument(self, argument: object) -> object:
        if isinstance(argument, ir.Value):
            return self.value(argument)
        if isinstance(argument, (tuple, list)):
            return [self._argument(item) for item in argument]
        return argument

    def _values(self, value: ir.Value) -> list[Any]:
        node = value._node
        return [node.handle] if node._operator.output_count == 1 else self._core.items(value)


class _Reader:
    """Answers what the native reading of an FX graph asks; see native/python/engine_fx.h."""

    def __init__(self, mode: Any) -> None:
        self._mode = mode

    def describe(self, fx_node: Any) -> tuple[ir.Operator, tuple[SchemaParameter, ...] | None]:
        if not isinstance(fx_node.target, torch._ops.OpOverload):
            return _structure(fx_node), None
        kind = operator_of(fx_node.target)
        return kind, signature_of(fx_node.target) if kind.parameters else None

    def fold(
        self, fx_node: Any, kind: ir.Operator
    ) -> tuple[ir.Operator, tuple[object, ...] | None]:
        """Return the metas of a node that is only indexed, or its operator as one value."""
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

    def raise_mismatch(self, fx_node: Any) -> None:
        """Raise the `SchemaError` that says why the arguments do not match the schema."""
        in_schema_order(fx_node.target, fx_node.args, fx_node.kwargs)

    def meta(self, fx_node: Any) -> object:
        return self._of_one_mode(_meta_of(fx_node))

    def _of_one_mode(self, meta: object) -> object:
        """Give all nodes one fake mode, as shapes are inferred under one."""
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
    """Return the fake mode of the first fake tensor that describes a node."""
    fakes = (_meta_of(node) for node in graph.nodes)
    return next((fake.fake_mode for fake in fakes if isinstance(fake, FakeTensor)), None)


def _structure(fx_node: Any) -> ir.Operator:
    """Return the kind of a node without an operator; none but pure ones may be moved across."""
    if fx_node.op == "placeholder":
        return ir.Operator(ir.INPUT)
    if fx_node.op == "get_attr":
        return ir.Operator(ir.CONSTANT)
    if fx_node.op != "call_function":
        return ir.Operator(f"fx::{fx_node.op}", opaque=True)
    module = getattr(fx_node.target, "__module__", "") or ""
    if isinstance(fx_node.target, torch._ops.HigherOrderOperator):
        functional = writes_nothing(fx_node)
        kind = f"python::{module}.{fx_node.target.__name__}"
        return ir.Operator(kind, kept=functional, opaque=not functional)
    name = getattr(fx_node.target, "__name__", None) or str(fx_node.target)
    pure = module in _PURE_MODULES and (module != "torch" or name in _PURE_TORCH)
    return ir.Operator(f"python::{module}.{name}", opaque=not pure)


def _slots_of(overload: Any) -> _Slots:
    """Return the parameters of an operator, defaults as torch.fx has arguments."""
    return [
        (slot.name, slot.kwarg_only, slot.has_default, _lists(slot.default))
        for slot in signature_of(overload)
    ]


def _lists(argument: object) -> object:
    if isinstance(argument, (tuple, list)):
        return [_lists(item) for item in argument]
    return argument


def as_traced(
    slots: _Slots, given: tuple[object, ...]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return arguments in schema order as tracing writes them, without those at default."""
    keywords: dict[str, object] = {}
    positional = needed = 0
    for (name, kwarg_only, has_default, default), argument in zip(slots, given, strict=True):
        omitted = has_default and _is_default(default, argument)
        if not kwarg_only:
            positional += 1
            needed = needed if omitted else positional
        elif not omitted:
            keywords[name] = argument
    return given[:needed], keywords


def _is_default(default: object, given: object) -> bool:
    """Return whether an argument equals the default; symbolic sizes are not compared."""
    if isinstance(default, list) and isinstance(given, list):
        return len(default) == len(given) and all(map(_is_default, default, given))
    return same_number(default, given)


def _free_name(module: Any, base: str) -> str:
    name, number = base, 0
    while hasattr(module, name):
        number += 1
        name = f"{base}_{number}"
    return name
