"""What runs a rewritten ATen graph one operator after the other, and what a boxed function is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from torch.fx._lazy_graph_module import _LazyGraphModule

__all__ = ["INNER_COMPILERS", "BoxedFunction", "run_eagerly"]

INNER_COMPILERS = ("eager", "inductor")

BoxedFunction = Callable[[list[Any]], Any]
"""Takes its arguments as one list, which it may empty."""


def run_eagerly(aten: Any, inputs: Sequence[Any]) -> BoxedFunction:
    """The graph's operators one by one."""
    from torch._functorch.aot_autograd import make_boxed_func  # see dynamo_backend

    # a lazily compiled module would go through Module.__call__ at every call
    _LazyGraphModule.force_recompile(aten)
    return cast(BoxedFunction, make_boxed_func(aten.forward))
