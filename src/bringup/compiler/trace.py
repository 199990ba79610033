"""Patterns from torch functions: traced to the ATen operators that the backend's passes see."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from bringup import passes
from bringup.compiler.mirror import Mirror

__all__ = ["trace_pattern"]


def trace_pattern(
    function: Callable[..., Any],
    *examples: Any,
    open_arguments: Collection[str] = (),
    name: str = "",
) -> passes.Pattern:
    """A pattern that matches what AOT autograd makes of `function` in an inference graph.

    Arguments:
        function: takes tensors and returns one or several of them.
        examples: tensors (real, fake or meta) of the rank and dtype to expect; each becomes an
            input of the pattern. Their sizes do not matter unless an operator of the graph names
            them (a `view`): leave those open.
        open_arguments: names of operator parameters that may be anything, e.g. `{"size"}`. The one
            of node `view` is captured as `match_result["view.size"]`.
        name: what reports call it; the function's name by default.

    Raises `PassError` when an input is not used or the trace holds a constant tensor.
    """
    functional = torch.func.functionalize(function)
    with torch.no_grad():
        traced = make_fx(functional, tracing_mode="fake", _allow_non_fake_inputs=True)(*examples)
    traced.graph.eliminate_dead_code()  # reads of sizes, and what the function throws away
    graph = Mirror(traced).graph
    for node in graph.nodes:
        for parameter in node.operator.parameters:
            if parameter.name in open_arguments:
                capture = passes.any_value(f"{node.name}.{parameter.name}")
                graph.set_argument(node, parameter.name, capture)
    return passes.Pattern(graph, name or getattr(function, "__name__", "traced"))
