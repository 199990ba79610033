"""What runs a rewritten ATen graph one operator after the other, and what a boxed function is."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch.fx._lazy_graph_module import _LazyGraphModule

__all__ = ["INNER_COMPILERS", "BoxedFunction", "computes", "run_eagerly"]

INNER_COMPILERS = ("eager", "inductor")

BoxedFunction = Callable[[list[Any]], Any]
"""Takes its arguments as one list, which it may empty."""


def run_eagerly(aten: Any, inputs: Sequence[Any]) -> BoxedFunction:
    """The graph's operators one by one."""
    from torch._functorch.aot_autograd import make_boxed_func  # see dynamo_backend

    # a lazily compiled module would go through Module.__call__ at every call
    _LazyGraphModule.force_recompile(aten)
    return cast(BoxedFunction, make_boxed_func(aten.forward))


def computes(aten: Any) -> bool:
    """Whether a graph does more than handing on views of its inputs: whether a capture of it would
    record anything.
    """
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
