"""Packed weights in fewer bits, layer by layer, where results stay close on given inputs.

The oracle is the same graph with its weights in float32. A layer takes the other dtype if its own
output stays close, and the graph keeps these if its results do; otherwise the layers that are
furthest off go back to float32, half of them at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bringup._differences import cosine
from bringup.compiler.graph_modules import copied

COSINE_BOUND = 0.999
_TIE = 2.0**-7
"""What one rounding to bfloat16 may move an element, over its magnitude."""
_PACKED = "bringup::packed_linear"


@dataclass(frozen=True)
class GateResult:
    """Which packed layers, by number, may be narrow, the least `cosine`, and why others stay."""

    layers: tuple[int, ...]
    count: int
    cosine: float
    refused: Mapping[int, str]

    def text(self, dtype: str) -> str:
        """For people, one sentence."""
        said = f"{len(self.layers)} of {self.count} packed weights in {dtype}"
        if self.layers:
            said += f" (least cosine of a result {self.cosine:.6f}, the same top-1)"
        if self.refused:
            rest = ", ".join(f"{layer}: {why}" for layer, why in self.refused.items())
            said += f"; in float32 stay {rest}"
        return said


def choose_layers(module: Any, arguments: Sequence[Any], dtype: str) -> GateResult:
    """Try packed layers as `bfloat16`, `int8` or `w8a8` on `arguments`. Nothing is written."""
    nodes = _packed(module)
    if any(_writes(node) for node in module.graph.nodes):
        reason = dict.fromkeys(range(len(nodes)), "the graph writes memory")
        return GateResult((), len(nodes), 1.0, reason)
    watched = _Watched(module, nodes, dtype)
    expected = watched.run(*arguments)
    cosines = watched.cosines
    kept = sorted(layer for layer in range(len(nodes)) if cosines[layer] >= COSINE_BOUND)
    refused = {
        layer: f"cosine {cosine:.6f}" for layer, cosine in enumerate(cosines) if layer not in kept
    }
    least = 1.0
    while kept:
        trial = copied(module)
        narrow(trial, kept, dtype)
        least, same = _compare(torch.fx.Interpreter(trial).run(*arguments), expected)
        if least >= COSINE_BOUND and same:
            break
        worst = sorted(kept, key=lambda layer: cosines[layer])[: (len(kept) + 1) // 2]
        why = f"a result has cosine {least:.6f}" if least < COSINE_BOUND else "top-1 differs"
        refused.update(dict.fromkeys(worst, why))
        kept = [layer for layer in kept if layer not in worst]
        least = 1.0
    return GateResult(tuple(kept), len(nodes), least, refused)


def narrow(module: Any, layers: Sequence[int], dtype: str) -> None:
    """Give packed layers of a graph, by their numbers, weights in another dtype; in place."""
    packed: dict[str, list[str]] = {}
    for layer, node in enumerate(_packed(module)):
        if layer not in layers:
            continue
        source = str(node.args[1].target)
        if source not in packed:
            parts = _packed_in(getattr(module, source), _padding(node), dtype)
            packed[source] = [f"{source}_{dtype}_{index}" for index in range(len(parts))]
            for name, part in zip(packed[source], parts, strict=True):
                module.register_buffer(name, part, persistent=False)
        with module.graph.inserting_before(node):
            constants = [module.graph.get_attr(name) for name in packed[source]]
            call = module.graph.call_function(
                _operator(dtype), (node.args[0], *constants, *node.args[2:]), node.kwargs
            )
        call.meta.update(node.meta)
        node.replace_all_uses_with(call)
        module.graph.erase_node(node)
    module.recompile()


class _Watched(torch.fx.Interpreter):  # type: ignore[misc]  # torch is Any to mypy
    """Runs a graph, and next to every packed layer the same layer with narrow weights."""

    def __init__(self, module: Any, nodes: Sequence[Any], dtype: str) -> None:
        super().__init__(module)
        self._layers = {node: layer for layer, node in enumerate(nodes)}
        self._dtype = dtype
        self.cosines = [0.0] * len(nodes)

    def run_node(self, node: Any) -> Any:
        result = super().run_node(node)
        if node in self._layers:
            (x, panels, *rest), keywords = self.fetch_args_kwargs_from_env(node)
            try:
                parts = _packed_in(panels, _padding(node), self._dtype)
            except ValueError:  # elements that are not finite have no int8: the cosine stays 0
                return result
            got = _operator(self._dtype)(x, *parts, *rest, **keywords)
            self.cosines[self._layers[node]] = cosine(got, result)
        return result


def _packed(module: Any) -> list[Any]:
    """Return the calls of `packed_linear` over float32 constants of the graph, in order."""
    found = []
    for node in module.graph.nodes:
        if node.op == "call_function" and str(getattr(node.target, "name", str)()) == _PACKED:
            panels = node.args[1]
            is_constant = panels.op == "get_attr"
            if is_constant and getattr(module, str(panels.target)).dtype == torch.float32:
                found.append(node)
    return found


def _writes(node: Any) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _padding(node: Any) -> int:
    if len(node.args) > 3:
        return int(node.args[3])
    return int(node.kwargs.get("padding", 0))


def _operator(dtype: str) -> Any:
    name = "packed_linear" if dtype == "bfloat16" else f"packed_linear_{dtype}"
    return getattr(torch.ops.bringup, name).default


def _packed_in(panels: Any, padding: int, dtype: str) -> tuple[Any, ...]:
    """Return the panels of a float32 weight in another dtype, and the scales where it has some."""
    from bringup.kernels import pack_weight, pack_weight_int8

    rows = panels.squeeze(-1).transpose(1, 2).flatten(0, 1)
    weight = rows[: rows.shape[0] - padding]
    if dtype == "bfloat16":
        return (pack_weight(weight, torch.bfloat16),)
    return tuple(pack_weight_int8(weight))


def _compare(got: Any, expected: Any) -> tuple[float, bool]:
    """Return the least cosine of all floating results, and whether top-1 is the same."""
    least, same = 1.0, True
    for mine, theirs in zip(got, expected, strict=True):
        if not isinstance(theirs, torch.Tensor) or not theirs.is_floating_point():
            continue
        least = min(least, cosine(mine, theirs))
        if same and theirs.dim() > 0 and theirs.numel() > 0:  # ties nearer than `_TIE` are the same
            chosen = theirs.gather(-1, mine.argmax(-1, keepdim=True)).squeeze(-1)
            near = theirs.amax(-1) - chosen <= _TIE * theirs.abs().amax(-1)
            same = bool(near.all())
    return least, same
