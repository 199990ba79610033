"""Patterns from torch functions: traced to the ATen operators that the backend's passes see."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from bringup import ir, passes
from bringup.compiler.mirror import Mirror
from bringup.errors import PassError

# Two generic matrices that share nothing but their rank, so that whatever a trace takes from the
# size or dtype of its inputs differs between them. Sizes with many divisors, for views with
# numbers in them; a traced tensor has no data.
_GENERIC = ((80640, torch.float32), (161280, torch.float64))


def trace_pattern(
    function: Callable[..., Any],
    *examples: Any,
    open_arguments: Collection[str] = (),
    name: str = "",
) -> passes.Pattern:
    """Return a pattern that matches what AOT autograd makes of `function` in an inference graph.

    Args:
        function: takes tensors and returns one or several of them.
        examples: tensors of the rank and dtype to expect, one an input. Their sizes do not matter
            unless an operator names them (a `view`): leave those open. Without examples every
            parameter without a default is a floating-point matrix of any size.
        open_arguments: names of operator parameters that may be anything, e.g. `{"size"}`. The one
            of node `view` is captured as `match_result["view.size"]`.
        name: what reports call it; the function's name by default.

    Raises `TypeError` when the examples do not fit the parameters, and `PassError` when an input is
    not used, the trace holds a constant tensor, or `function` needs examples to be traced.
    """
    called = name or getattr(function, "__name__", "traced")
    if examples:
        _refuse_wrong_examples(function, called, examples)
        graph = _traced(function, examples)
    else:
        graph = _generic_trace(function, called, frozenset(open_arguments))
    for node in graph.nodes:
        if node.op_type == ir.CONSTANT:
            raise PassError(
                f"{called} uses a tensor of its own, traced as the constant {node.name!r}; make it "
                "an input, or build the pattern with passes.constant"
            )
        for parameter in node.operator.parameters:
            if parameter.name in open_arguments:
                capture = passes.any_value(f"{node.name}.{parameter.name}")
                graph.set_argument(node, parameter.name, capture)
    return passes.Pattern(graph, called)


def _traced(function: Callable[..., Any], examples: Sequence[Any]) -> ir.Graph:
    signature = _signature(function)
    if signature is not None and len(signature.parameters) != len(examples):
        function = functools.partial(function)  # make_fx asks a plain function for all parameters
    functional = torch.func.functionalize(function)
    with torch.no_grad():
        traced = make_fx(functional, tracing_mode="fake", _allow_non_fake_inputs=True)(*examples)
    traced.graph.eliminate_dead_code()  # reads of sizes, and what the function throws away
    return Mirror(traced).graph


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except ValueError:  # some builtins do not tell theirs
        return None


def _refuse_wrong_examples(
    function: Callable[..., Any], called: str, examples: Sequence[Any]
) -> None:
    signature = _signature(function)
    if signature is None:
        return
    try:
        signature.bind(*examples)
    except TypeError as error:
        raise TypeError(
            f"trace_pattern: {len(examples)} examples do not fit {called}{signature}: {error}; "
            "give one tensor for each parameter, or none at all"
        ) from error


def _input_count(function: Callable[..., Any], called: str) -> int:
    """Return how many tensors `function` needs."""
    signature = _signature(function)
    kinds = [] if signature is None else [item.kind for item in signature.parameters.values()]
    if signature is None or inspect.Parameter.VAR_POSITIONAL in kinds:
        raise TypeError(
            f"trace_pattern: {called} does not tell how many tensors it takes: give an example of "
            "each"
        )
    needed = [item for item in signature.parameters.values() if item.default is item.empty]
    for item in needed:
        if item.kind is item.KEYWORD_ONLY:
            raise TypeError(
                f"trace_pattern: {called}{signature} needs the keyword {item.name!r}, and only "
                "positional parameters become inputs of a pattern: wrap it in a lambda"
            )
    return sum(item.kind is not item.VAR_KEYWORD for item in needed)


def _generic_trace(
    function: Callable[..., Any], called: str, open_arguments: frozenset[str]
) -> ir.Graph:
    count = _input_count(function, called)
    graphs = []
    for size, dtype in _GENERIC:
        matrices = [torch.empty(size, size, dtype=dtype, device="meta") for _ in range(count)]
        try:
            graphs.append(_traced(function, matrices))
        except Exception as error:
            raise PassError(
                f"{called} cannot be traced on {count} floating-point matrices, which stand in "
                f"where no examples are given: {type(error).__name__}: {error}\n"
                "Give an example of each input: trace_pattern(function, torch.empty(2, 3, 4), ...)"
            ) from error
    _refuse_differences(graphs[0], graphs[1], called, open_arguments)
    return graphs[0]


def _refuse_differences(
    one: ir.Graph, other: ir.Graph, called: str, open_arguments: frozenset[str]
) -> None:
    """Refuse traces that depend on sizes or dtypes that were not asked for."""
    if [node.op_type for node in one.nodes] != [node.op_type for node in other.nodes]:
        raise PassError(
            f"which operators {called} calls depends on the sizes or the dtype of its inputs: give "
            "an example of each"
        )
    for node, twin in zip(one.nodes, other.nodes, strict=True):
        names = [parameter.name for parameter in node.operator.parameters]
        for name, left, right in zip(names, node.arguments, twin.arguments, strict=False):
            if name not in open_arguments and ir.argument_text(left) != ir.argument_text(right):
                raise PassError(
                    f"argument {name!r} of {node.op_type} ({node.name!r}) in {called} is made from "
                    "the sizes or the dtype of the inputs: leave it open with "
                    f"open_arguments={{{name!r}}}, or give an example of each input"
                )
