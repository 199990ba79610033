"""What compiles a rewritten ATen graph, and what a boxed function is."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

INNER_COMPILERS = ("eager", "inductor")

BoxedFunction = Callable[[list[Any]], Any]
"""Takes its arguments as one list, which it may empty."""


def computes(aten: Any) -> bool:
    """Return whether a graph does more than hand on views: whether a capture has nodes."""
    calls = [
        node for node in aten.graph.nodes if node.op not in ("placeholder", "get_attr", "output")
    ]
    return not all(node.op == "call_function" and _is_view(node.target) for node in calls)


def _is_view(target: Any) -> bool:
    if target is operator.getitem:
        return True
    if not isinstance(target, torch._ops.OpOverload):
        return False
    aliases = [item.alias_info for item in target._schema.returns]
    return bool(aliases) and all(item is not None and not item.is_write for item in aliases)
