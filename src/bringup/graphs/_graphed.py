"""Callables whose forward and backward are captured: drop-in replacements in a training loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable
from torch.utils import _pytree

from bringup.errors import CaptureError, ContractError
from bringup.graphs._capture import capture
from bringup.graphs._compare import value_text
from bringup.graphs._graph import CapturedGraph
from bringup.graphs._inputs import Placeholders
from bringup.graphs._pool import pool_of

__all__ = ["make_graphed_callables"]

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def make_graphed_callables(
    callables: Any,
    sample_args: tuple[Any, ...],
    num_warmup_iters: int = 0,
    allow_unused_input: bool = False,
    pool: object | None = None,
) -> Any:
    """Captures the forward and the backward run of callables; what it returns takes their place in
    a training loop, and is one node of autograd's graph each.

    A captured call gives results and gradients that share no memory with the graphs, so that it
    may be called again before they are read. Its backward reads what the last forward left: after
    another forward with gradients it raises. Captures run a callable once, and put back what it
    changed (buffers, random generators).

    Args:
        callables: a function or a `torch.nn.Module`, or a tuple of them. A module is changed in
            place and returned: its `forward` becomes the captured one where `training` is as now,
            and stays what it was otherwise.
        sample_args: the arguments of a call, a tuple of tensors or of nests of them; for a tuple of
            callables, a tuple of such tuples. Later calls take the same nest with the same shapes,
            dtypes, devices and `requires_grad`.
        num_warmup_iters: accepted for programs written for CUDA graphs; a capture needs none.
        allow_unused_input: whether an input or parameter that requires a gradient may have none.
        pool: memory that the graphs of all callables share, as for `graphs.capture`. A backward
            then has to come before the forward of its callable or of one before it runs again.

    Returns:
        The callable, or a tuple of them.

    Raises:
        TypeError: an argument is no tensor, there are not as many samples as callables, or a
            callable cannot be called.
        CaptureError: a module has hooks, a buffer that requires a gradient or lazy parameters; or
            the run cannot be captured.
        RuntimeError: torch's, where an input has no gradient and `allow_unused_input` is not set.
    """
    del num_warmup_iters
    if not isinstance(callables, tuple):
        return _graphed((callables,), (sample_args,), allow_unused_input, pool)[0]
    if not isinstance(sample_args, tuple) or len(sample_args) != len(callables):
        raise TypeError(
            f"make_graphed_callables: {len(callables)} callables take a tuple of as many tuples of "
            "sample arguments"
        )
    return _graphed(callables, sample_args, allow_unused_input, pool)


def _graphed(
    callables: tuple[Any, ...], samples: tuple[Any, ...], allow_unused: bool, pool: object | None
) -> tuple[Any, ...]:
    """All forwards are captured before the first backward, so that no backward is in the memory of
    what another one reads.
    """
    if pool is not None:
        pool = pool_of(pool)
    for function, sample in zip(callables, samples, strict=True):
        _check(function, sample)
    forwards = [
        _captured_forward(function, sample, pool)
        for function, sample in zip(callables, samples, strict=True)
    ]
    calls = [_graphed_call(forward, allow_unused, pool) for forward in reversed(forwards)]
    return tuple(
        _in_place_of(function, call)
        for function, call in zip(callables, reversed(calls), strict=True)
    )


def _check(function: Any, sample: Any) -> None:
    if not isinstance(sample, tuple):
        raise TypeError(
            "make_graphed_callables: sample_args is a tuple, one entry for each argument, got "
            f"{type(sample).__name__}"
        )
    if isinstance(function, torch.nn.Module):
        _check_module(function)
    elif not callable(function):
        raise TypeError(f"make_graphed_callables: {function!r} cannot be called")


def _in_place_of(function: Any, call: Callable[..., Any]) -> Any:
    if not isinstance(function, torch.nn.Module):
        return call
    training, eager = function.training, function.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        return (call if function.training == training else eager)(*args, **kwargs)

    function.forward = forward
    return function


def _check_module(module: torch.nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if torch.nn.parameter.is_lazy(parameter):
            raise CaptureError(
                f"make_graphed_callables: parameter '{name}' has no shape yet: run the module once"
            )
    for submodule in module.modules():
        if any(getattr(submodule, name) for name in _HOOKS):
            raise CaptureError(
                f"make_graphed_callables: {type(submodule).__name__} has hooks, which a replay "
                "would not call. Register them afterwards, or remove them"
            )
    for name, buffer in module.named_buffers():
        if buffer.requires_grad:
            raise CaptureError(
                f"make_graphed_callables: buffer '{name}' requires a gradient; only parameters may"
            )


@dataclass
class _Captured:
    """One callable's graphs.

    Attributes:
        inputs: the captured tensors of the arguments.
        wanted: which of these and of the module's parameters required a gradient.
        forward: gives the results of the call.
        backward: takes gradients of the results that require one, gives those of the arguments and
            parameters that have one; None when no result requires one.
        differentiable: which results require a gradient.
        has_gradient: which of the arguments and parameters has one.
    """

    what: str
    inputs: list[torch.Tensor]
    wanted: list[bool]
    forward: CapturedGraph
    backward: CapturedGraph | None
    differentiable: list[bool]
    has_gradient: list[bool]

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self.calls = 0  # which saved tensors the backward would read

    def run_forward(self, inputs: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], int]:
        with self.lock:
            self.calls += 1
            return self.forward.run(*inputs), self.calls

    def run_backward(self, gradients: Sequence[torch.Tensor], call: int) -> list[Any]:
        assert self.backward is not None
        with self.lock:
            if call != self.calls:
                raise CaptureError(
                    f"backward of a captured call of {self.what}: another call has run since, and "
                    "its intermediate results are in the place of this one's. Call backward before "
                    "the next call, or capture one callable for each call between backwards"
                )
            found = iter(self.backward.run(*gradients))
        return [next(found) if has else None for has in self.has_gradient]


class _Forward(NamedTuple):
    """A captured forward, whose backward is captured next."""

    what: str
    inputs: list[torch.Tensor]
    parameters: tuple[torch.Tensor, ...]
    nest: Any
    graph: CapturedGraph
    results: list[torch.Tensor]
    result_nest: Any


def _captured_forward(function: Any, sample: Any, pool: object | None) -> _Forward:
    of_module = isinstance(function, torch.nn.Module)
    what = type(function).__name__ if of_module else getattr(function, "__qualname__", None)
    what = repr(function) if what is None else what
    leaves, nest = _pytree.tree_flatten(sample)
    inputs = [_captured_input(what, leaf) for leaf in leaves]
    graph = CapturedGraph()
    run = function.forward if of_module else function
    with torch.enable_grad(), capture(graph, pool, inputs=Placeholders(inputs), gradients=True):
        result = run(*_pytree.tree_unflatten(inputs, nest))
        results, result_nest = _pytree.tree_flatten(result)
        graph.outputs = [_result(what, value).detach() for value in results]
    parameters = tuple(function.parameters()) if of_module else ()
    return _Forward(what, inputs, parameters, nest, graph, results, result_nest)


def _graphed_call(forward: _Forward, allow_unused: bool, pool: object | None) -> Callable[..., Any]:
    what, inputs, parameters, nest, graph, results, result_nest = forward
    with torch.enable_grad():
        captured = _capture_backward(what, inputs, parameters, graph, results, allow_unused, pool)
    results.clear()

    def call(*args: Any) -> Any:
        given, given_nest = _pytree.tree_flatten(args)
        if given_nest != nest:
            raise ContractError(
                f"a captured call of {what} takes the arguments that it was captured with ({nest})"
                f", got {given_nest}"
            )
        surface = [*given, *parameters]
        _check_gradients(captured, surface)
        return _pytree.tree_unflatten(list(_Call.apply(captured, *surface)), result_nest)

    return call


def _captured_input(what: str, leaf: Any) -> torch.Tensor:
    if not isinstance(leaf, torch.Tensor):
        raise TypeError(
            f"make_graphed_callables: {what} takes {value_text(leaf)}; sample arguments are tensors"
        )
    return leaf.detach().clone().requires_grad_(leaf.requires_grad)


def _result(what: str, value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise CaptureError(
            f"make_graphed_callables: {what} gives {value_text(value)}; results are tensors"
        )
    return value


def _capture_backward(
    what: str,
    inputs: list[torch.Tensor],
    parameters: Any,
    forward: CapturedGraph,
    results: list[torch.Tensor],
    allow_unused: bool,
    pool: object | None,
) -> _Captured:
    surface = [*inputs, *parameters]
    wanted = [tensor.requires_grad for tensor in surface]
    differentiable = [value.requires_grad for value in results]
    if not any(differentiable):
        return _Captured(
            what, inputs, wanted, forward, None, differentiable, [False] * len(surface)
        )
    roots = [value for value in results if value.requires_grad]
    gradients = [torch.zeros_like(value) for value in roots]
    backward = CapturedGraph()
    with capture(backward, pool, inputs=Placeholders(gradients)):
        found = torch.autograd.grad(
            roots,
            [tensor for tensor in surface if tensor.requires_grad],
            gradients,
            allow_unused=allow_unused,
        )
        backward.outputs = [gradient for gradient in found if gradient is not None]
    of_wanted = iter(found)
    has = [want and next(of_wanted) is not None for want in wanted]
    return _Captured(what, inputs, wanted, forward, backward, differentiable, has)


def _check_gradients(captured: _Captured, surface: Sequence[Any]) -> None:
    if not torch.is_grad_enabled():
        return
    for number, (now, then) in enumerate(zip(surface, captured.wanted, strict=True)):
        if not isinstance(now, torch.Tensor) or now.requires_grad == then:
            continue
        of_module = number - len(captured.inputs)
        which = f"argument {number}" if of_module < 0 else f"parameter {of_module}"
        states = ("requires a gradient, and did not", "requires no gradient, and did")
        raise ContractError(
            f"a captured call of {captured.what}: {which} {states[then]} when it was captured."
            " Capture again"
        )


class _Call(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, captured: _Captured, *surface: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.captured = captured
        results, ctx.call = captured.run_forward(surface[: len(captured.inputs)])
        ctx.mark_non_differentiable(
            *(
                value
                for value, differentiable in zip(results, captured.differentiable, strict=True)
                if not differentiable
            )
        )
        return tuple(results)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        captured = ctx.captured
        used = [
            gradient
            for gradient, differentiable in zip(gradients, captured.differentiable, strict=True)
            if differentiable
        ]
        return (None, *captured.run_backward(used, ctx.call))
