"""Operators of complex numbers as operators of pairs of real ones, which generated code has."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

import torch
from torch._prims_common import is_contiguous_or_false
from torch.utils._pytree import tree_map

aten = torch.ops.aten
_REAL = {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}
_KEPT = ("original_aten", "stack_trace", "nn_module_stack", "from_node")


def compute_pairs(graph: Any, device_type: str, dtypes: Set[torch.dtype]) -> None:
    """Rewrite nodes that compute complex numbers on a device, as pairs in the same memory."""
    pairs = _Pairs(graph)
    for node in list(graph.nodes):
        found = [one.meta.get("val") for one in (node, *node.all_input_nodes)]
        values = [value for value in found if isinstance(value, torch.Tensor)]
        parts = {_REAL[value.dtype] for value in values if value.is_complex()}
        there = all(value.device.type == device_type for value in values)
        if parts and parts <= dtypes and there and len(values) == len(found):
            pairs.rewrite(node)


class _Pairs:
    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._made: dict[Any, Any] = {}  # what a complex node was made of
        self._node: Any = None

    def rewrite(self, node: Any) -> None:
        rule = _RULES.get(node.target)
        self._node = node
        with self._graph.inserting_before(node):
            made = rule(self, *node.args, **node.kwargs) if rule else None
            if made is None:
                return
            if node.meta["val"].is_complex():
                pair, made = made, self.call(aten.view_as_complex.default, made)
                self._made[made] = pair
        node.replace_all_uses_with(made)
        self._graph.erase_node(node)

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Any:
        """Return a node that stands for one that is rewritten."""
        made = self._graph.call_function(target, args, kwargs)
        given = tree_map(lambda v: v.meta["val"] if isinstance(v, torch.fx.Node) else v, args)
        made.meta = {key: self._node.meta[key] for key in _KEPT if key in self._node.meta}
        made.meta["val"] = target(*given, **kwargs)
        return made

    def pair(self, node: Any) -> Any:
        if node not in self._made:
            # Whether a tensor is a lazy conjugate is not known before the call, and one that lies
            # in another order gets other strides once it is resolved.
            if is_contiguous_or_false(node.meta["val"]):
                plain = self.call(aten.resolve_conj.default, node)
            else:
                plain = self.call(aten.clone.default, node, memory_format=torch.contiguous_format)
            self._made[node] = self.call(aten.view_as_real.default, plain)
        return self._made[node]

    def parts(self, value: Any) -> list[Any]:
        """Return the real and imaginary part of a node or number, in the dtype of the result's."""
        if not isinstance(value, torch.fx.Node):
            return [float(value.real), float(value.imag)]
        if not value.meta["val"].is_complex():
            return [self.real(value), 0.0]
        pair = self.real(self.pair(value))
        return [self.call(aten.select.int, pair, -1, part) for part in (0, 1)]

    def real(self, node: Any) -> Any:
        """Return a node of real numbers in the dtype of the result's parts."""
        result = self._node.meta["val"].dtype
        dtype = _REAL.get(result, result)
        if node.meta["val"].dtype is dtype:
            return node
        return self.call(torch.ops.prims.convert_element_type.default, node, dtype)

    def joined(self, *parts: Any) -> Any:
        return self.call(
            aten.cat.default, [self.call(aten.unsqueeze.default, one, -1) for one in parts], -1
        )


def _converted(pairs: _Pairs, x: Any, dtype: torch.dtype) -> Any:
    if not dtype.is_complex:
        return None
    if x.meta["val"].is_complex():
        return pairs.real(pairs.pair(x))
    real = pairs.call(aten.unsqueeze.default, pairs.real(x), -1)
    return pairs.call(aten.constant_pad_nd.default, real, [0, 1], 0.0)


def _padded(pairs: _Pairs, x: Any, pad: list[Any], value: Any = 0) -> Any:
    if value != 0:
        return None
    return pairs.call(aten.constant_pad_nd.default, pairs.pair(x), [0, 0, *pad], 0.0)


def _copied(pairs: _Pairs, x: Any, memory_format: Any = None) -> Any:
    others = (torch.channels_last, torch.channels_last_3d)
    if memory_format in others or not is_contiguous_or_false(x.meta["val"]):
        return None
    return pairs.call(aten.clone.default, pairs.pair(x), memory_format=memory_format)


def _conjugate(pairs: _Pairs, x: Any) -> Any:
    real, imaginary = pairs.parts(x)
    return pairs.joined(real, pairs.call(aten.neg.default, imaginary))


def _product(pairs: _Pairs, x: Any, y: Any) -> Any:
    def product(left: Any, right: Any) -> Any:
        if not isinstance(left, torch.fx.Node):
            left, right = right, left
        numbers = not isinstance(left, torch.fx.Node)
        return left * right if numbers else pairs.call(aten.mul.Tensor, left, right)

    (a, b), (c, d) = pairs.parts(x), pairs.parts(y)
    real = pairs.call(aten.sub.Tensor, product(a, c), product(b, d))
    return pairs.joined(real, pairs.call(aten.add.Tensor, product(a, d), product(b, c)))


def _negative(pairs: _Pairs, x: Any) -> Any:
    return pairs.call(aten.neg.default, pairs.pair(x))


def _absolute(pairs: _Pairs, x: Any) -> Any:
    return pairs.call(aten.hypot.default, *pairs.parts(x))


_RULES: dict[Any, Callable[..., Any]] = {
    torch.ops.prims.convert_element_type.default: _converted,
    aten.clone.default: _copied,
    aten.constant_pad_nd.default: _padded,
    aten._conj_physical.default: _conjugate,
    aten.mul.Tensor: _product,
    aten.neg.default: _negative,
    aten.abs.default: _absolute,
}
