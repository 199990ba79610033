"""Graphs of any size for the rewrite rows: one Llama-like block, replicated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.experimental.proxy_tensor import make_fx

__all__ = ["BLOCK_NORMS", "block_module", "layers_for", "replicated"]

BLOCK_NORMS = 2  # RMSNorms in one block
_EPS = 1e-6
_SIZE, _INNER, _HEADS = 32, 64, 4


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + _EPS))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def _block(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    norms: Tensor,
    attention: Tensor,
    gates: Tensor,
    down: Tensor,
) -> Tensor:
    y = _norm(x, norms[0])
    heads = [
        (y @ attention[part]).view(*x.shape[:2], _HEADS, -1).transpose(1, 2) for part in range(3)
    ]
    q, k = (_rotated(part, cos, sin) for part in heads[:2])
    mixed = torch.softmax(q @ k.transpose(2, 3) * 0.25, -1) @ heads[2]
    x = x + mixed.transpose(1, 2).reshape(x.shape) @ attention[3]
    y = _norm(x, norms[1])
    return x + (torch.nn.functional.silu(y @ gates[0]) * (y @ gates[1])) @ down


def block_module() -> Any:
    """One block as an FX graph of ATen operators with fake tensors as metadata."""
    size = _SIZE
    table = torch.randn(1, 1, 8, size // _HEADS)
    arguments = (
        torch.randn(1, 8, size),
        table,
        table,
        torch.ones(2, size),
        torch.randn(4, size, size),
        torch.randn(2, size, _INNER),
        torch.randn(_INNER, size),
    )
    with torch.no_grad():
        return make_fx(_block, tracing_mode="fake")(*arguments)


def layers_for(nodes: int) -> int:
    """How many blocks make about this many nodes."""
    compute = sum(node.op == "call_function" for node in block_module().graph.nodes)
    return max(1, round(nodes / compute))


def replicated(layers: int) -> Callable[[], Any]:
    """A function that makes a new graph module of so many blocks, one after the other.

    It is of the kind that `torch.compile` hands to backends: its Python code is made when somebody
    runs it.
    """
    block = block_module()

    def make() -> Any:
        graph = fx.Graph()
        copies: dict[Any, Any] = {}
        for node in block.graph.nodes:
            if node.op == "placeholder":
                copies[node] = graph.node_copy(node)
        first = next(iter(copies))
        value = copies[first]
        for _ in range(layers):
            layer = {**copies, first: value}
            for node in block.graph.nodes:
                if node.op == "output":
                    value = layer[node.args[0]]
                elif node.op != "placeholder":
                    layer[node] = graph.node_copy(node, layer.__getitem__)
        graph.output(value)
        return _LazyGraphModule({}, graph)

    return make
