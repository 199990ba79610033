"""Callables whose forward and backward are captured: drop-in replacements in a training loop."""

from __future__ import annotations

import copy
import inspect
import threading
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable
from torch.utils import _pytree

from bringup.errors import CaptureError, ContractError
from bringup.graphs._capture import capture, current_recorder, is_current_stream_capturing
from bringup.graphs._equality import value_text
from bringup.graphs._gradients import leaves_behind
from bringup.graphs._graph import CapturedGraph
from bringup.graphs._inputs import Placeholders
from bringup.graphs._pool import pool_of
from bringup.graphs._reachable import reachable

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def make_graphed_callables(
    callables: Any,
    sample_args: tuple[Any, ...],
    num_warmup_iters: int = 0,
    allow_unused_input: bool = False,
    pool: object | None = None,
) -> Any:
    """Capture the forward and the backward run of callables; what it returns takes their place in a
    training loop, and is one node of autograd's graph each.

    A captured call gives results and gradients that share no memory with the graphs, so that it
    may be called again before they are read. Its backward reads what the last forward left: after
    another call it raises, and so it does, as eager does, after a write to a tensor that it reads
    (a weight, a buffer, an argument). Captures run a callable once, and put back what it changed
    (buffers, random generators). What else requires a gradient in the run, such as a parameter that
    a function closes over, gets it.

    A deep copy of a module, or one that was pickled, runs eagerly, with its own weights;
    `module.forward.ungraph()` makes the module itself eager again.

    Args:
        callables: a function or a `torch.nn.Module`, or a tuple of them. A module is changed in
            place and returned: its `forward` becomes the captured one where `training` is as now,
            and stays what it was otherwise.
        sample_args: the arguments of a call, a tuple of tensors or of nests of them; for a tuple of
            callables, a tuple of such tuples. Later calls take the same nest with the same shapes,
            dtypes, devices and `requires_grad`, by position or by name. Under autocast floating
            arguments are converted to the sample's dtype.
        num_warmup_iters: accepted for programs written for CUDA graphs; a capture needs none.
        allow_unused_input: whether an input or parameter that requires a gradient may have none.
        pool: memory that the graphs of all callables share, as for `graphs.capture`. A backward
            then has to come before the forward of its callable or of one before it runs again.

    Returns:
        The callable, or a tuple of them.

    Raises:
        TypeError: an argument is no tensor, there are not as many samples as callables, or a
            callable cannot be called.
        CaptureError: a module has hooks, a buffer that requires a gradient or lazy parameters, or
            is graphed already; the run writes an argument or uses a tensor that has a history; or
            it cannot be captured.
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
    """Capture all forwards before the first backward, whose memory must not overlap theirs."""
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


class _GraphedForward:
    """Stands in a module's place for `forward`. Copies of the module run their own, eagerly."""

    def __init__(self, module: torch.nn.Module, call: Callable[..., Any]) -> None:
        self._module, self._call, self._eager = module, call, module.forward
        self._training = module.training
        self._former = vars(module).get("forward")
        self.__signature__ = inspect.signature(module.forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        captured = self._module.training == self._training and not is_current_stream_capturing()
        return (self._call if captured else self._eager)(*args, **kwargs)

    def ungraph(self) -> None:
        """Make the module itself eager again; its graphs go with the last call of them."""
        if self._former is None:
            del self._module.forward
        else:
            self._module.forward = self._former

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if self._former is not None:
            return copy.deepcopy(self._former, memo)
        module = copy.deepcopy(self._module, memo)
        return types.MethodType(type(module).forward, module)

    def __reduce__(self) -> Any:
        if self._former is not None:
            return _the_same, (self._former,)
        return getattr, (self._module, "forward")  # its class's: it is being made


def _the_same(forward: Any) -> Any:
    return forward


def _in_place_of(function: Any, call: Callable[..., Any]) -> Any:
    if not isinstance(function, torch.nn.Module):
        return call
    function.forward = _GraphedForward(function, call)
    return function


def _check_module(module: torch.nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if torch.nn.parameter.is_lazy(parameter):
            raise CaptureError(
                f"make_graphed_callables: parameter '{name}' has no shape yet: run the module once"
            )
    for submodule in module.modules():
        if isinstance(vars(submodule).get("forward"), _GraphedForward):
            raise CaptureError(
                f"make_graphed_callables: {type(submodule).__name__} is graphed already."
                " `module.forward.ungraph()` makes it eager again"
            )
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


class _Saved(NamedTuple):
    """What the backward of one call needs to know of its forward."""

    call: int
    versions: list[int]  # of what it reads and others can write
    inputs: list[tuple[str, torch.Tensor, int]]  # the same of the call's own arguments


@dataclass
class _Captured:
    """One callable's graphs."""

    what: str
    inputs: list[torch.Tensor]  # the captured tensors of the arguments
    names: list[str]  # of these and of the parameters, for messages
    wanted: list[bool]  # which of them required a gradient
    forward: CapturedGraph  # gives the results of the call
    # Takes gradients of the results that require one, gives those of the arguments and parameters
    # that have one; None when no result requires one.
    backward: CapturedGraph | None
    reads: Any  # the versions of what backward reads and others can write
    differentiable: list[bool]  # which results require a gradient
    has_gradient: list[bool]  # which of the arguments and parameters has one

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self.calls = 0  # which saved tensors the backward would read
        native = None if self.backward is None else self.backward._captured("inputs").native
        self._of_inputs = [native is not None and native.knows(one) for one in self.inputs]

    def run_forward(self, inputs: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], _Saved]:
        with self.lock:
            self.calls += 1
            results = self.forward.run(*inputs)
            versions = [] if self.reads is None else self.reads.now()
            read = [
                (name, one, one._version)
                for name, one, reads in zip(self.names, inputs, self._of_inputs, strict=False)
                if reads and not one.is_inference()
            ]
            return results, _Saved(self.calls, versions, read)

    def run_backward(self, gradients: Sequence[torch.Tensor], saved: _Saved) -> list[Any]:
        assert self.backward is not None
        with self.lock:
            if saved.call != self.calls:
                raise CaptureError(
                    f"backward of a captured call of {self.what}: another call has run since, and "
                    "its intermediate results are in the place of this one's. Call backward before "
                    "the next call, or capture one callable for each call between backwards"
                )
            written = [name for name, one, version in saved.inputs if one._version != version]
            written += self.reads.written_since(saved.versions)
            if written:
                raise CaptureError(
                    f"backward of a captured call of {self.what}: {written[0]}, which it reads, was"
                    " modified by an inplace operation since the call. Call backward before, or"
                    " give the callable a copy"
                )
            found = iter(self.backward.run(*gradients))
        return [next(found) if has else None for has in self.has_gradient]


class _Forward(NamedTuple):
    """A captured forward, whose backward is captured next."""

    what: str
    run: Callable[..., Any]
    inputs: list[torch.Tensor]
    parameters: tuple[torch.Tensor, ...]
    named: dict[int, tuple[str, torch.Tensor]]  # what the run can reach
    nest: Any
    signature: inspect.Signature | None
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
    since = torch.autograd._get_sequence_nr()
    block = capture(graph, pool, inputs=Placeholders(inputs))
    block._refuses_nothing = True
    with torch.enable_grad(), block:
        result = run(*_pytree.tree_unflatten(inputs, nest))
        results, result_nest = _pytree.tree_flatten(result)
        graph.outputs = [_result(what, value).detach() for value in results]
    content = graph._captured("inputs")
    for number, one in enumerate(inputs):
        if content.native.writes(one):
            raise CaptureError(
                f"make_graphed_callables: {what} writes its argument {number}, and a captured call"
                " reads a copy of what it is given: write a clone() in it, and return that"
            )
    parameters = list(function.parameters()) if of_module else []
    reached = leaves_behind([value for value in results if value.requires_grad], since)
    named = {id(one): (f"argument {number}", one) for number, one in enumerate(inputs)}
    if of_module:
        owned = (*function.named_parameters(), *function.named_buffers())
        named.update((id(one), (f"'{name}' of {what}", one)) for name, one in owned)
    for name, value, _ in reachable({what: function}):
        if issubclass(type(value), torch.Tensor):
            named.setdefault(id(value), (f"'{name}'", value))
            if issubclass(type(value), torch.nn.Parameter) and content.watch.reads(value):
                reached.append(value)
    known = {id(one) for one in (*inputs, *parameters)}
    parameters += {id(one): one for one in reached if id(one) not in known}.values()
    return _Forward(
        what=what,
        run=run,
        inputs=inputs,
        parameters=tuple(parameters),
        named=named,
        nest=nest,
        signature=_signature_of(run),
        graph=graph,
        results=results,
        result_nest=result_nest,
    )


def _graphed_call(forward: _Forward, allow_unused: bool, pool: object | None) -> Callable[..., Any]:
    with torch.enable_grad():
        captured = _capture_backward(forward, allow_unused, pool)
    forward.results.clear()
    what, nest, signature = forward.what, forward.nest, forward.signature
    function = forward.run
    parameters, result_nest = forward.parameters, forward.result_nest

    def call(*args: Any, **kwargs: Any) -> Any:
        if is_current_stream_capturing():
            return function(*args, **kwargs)
        if kwargs:
            args = _by_position(what, signature, args, kwargs)
        given, given_nest = _pytree.tree_flatten(args)
        if given_nest != nest:
            raise ContractError(
                f"a captured call of {what} takes the arguments that it was captured with ({nest})"
                f", got {given_nest}"
            )
        given = [_as_captured(*both) for both in zip(given, captured.inputs, strict=True)]
        surface = [*given, *parameters]
        _check_gradients(captured, surface)
        return _pytree.tree_unflatten(list(_Call.apply(captured, *surface)), result_nest)

    return call


def _as_captured(given: Any, captured: torch.Tensor) -> Any:
    """Return an argument in the dtype of the sample where autocast is on: what another callable
    gives there is of autocast's, and samples are mostly not.
    """
    if (
        isinstance(given, torch.Tensor)
        and given.dtype != captured.dtype
        and given.is_floating_point()
        and captured.is_floating_point()
        and torch.is_autocast_enabled(given.device.type)
    ):
        return given.to(captured.dtype)
    return given


def _signature_of(function: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # of a function in C
        return None


def _by_position(
    what: str, signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Return the arguments of a call, of which some are given by name."""
    bound = None if signature is None else signature.bind(*args, **kwargs)
    if bound is None or bound.kwargs:
        names = ", ".join(kwargs if bound is None else bound.kwargs)
        raise TypeError(
            f"a captured call of {what} takes its arguments by position, as the sample has them,"
            f" got {names} by name"
        )
    return bound.args


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


def _capture_backward(forward: _Forward, allow_unused: bool, pool: object | None) -> _Captured:
    what, inputs, results = forward.what, forward.inputs, forward.results
    surface = [*inputs, *forward.parameters]
    names = [
        forward.named[id(one)][0] if id(one) in forward.named else f"a tensor ({value_text(one)})"
        for one in surface
    ]
    wanted = [tensor.requires_grad for tensor in surface]
    differentiable = [value.requires_grad for value in results]
    if not any(differentiable):
        has = [False] * len(surface)
        return _Captured(
            what, inputs, names, wanted, forward.graph, None, None, differentiable, has
        )
    roots = [value for value in results if value.requires_grad]
    gradients = [torch.zeros_like(value) for value in roots]
    backward = CapturedGraph()
    with capture(backward, pool, inputs=Placeholders(gradients)):
        reads = current_recorder().watch.keep_versions()
        found = torch.autograd.grad(
            roots,
            [tensor for tensor in surface if tensor.requires_grad],
            gradients,
            allow_unused=allow_unused,
        )
        backward.outputs = [gradient for gradient in found if gradient is not None]
    for name, one in forward.named.values():
        reads.name(one, name)
    reads.settle(gradients)
    of_wanted = iter(found)
    has = [want and next(of_wanted) is not None for want in wanted]
    return _Captured(
        what, inputs, names, wanted, forward.graph, backward, reads, differentiable, has
    )


def _check_gradients(captured: _Captured, surface: Sequence[Any]) -> None:
    if not torch.is_grad_enabled():
        return
    for name, now, then in zip(captured.names, surface, captured.wanted, strict=True):
        if not isinstance(now, torch.Tensor) or now.requires_grad == then:
            continue
        states = ("requires a gradient, and did not", "requires no gradient, and did")
        raise ContractError(
            f"a captured call of {captured.what}: {name} {states[then]} when it was captured."
            " Capture again"
        )


class _Call(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, captured: _Captured, *surface: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.captured = captured
        results, ctx.saved = captured.run_forward(surface[: len(captured.inputs)])
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
        return (None, *captured.run_backward(used, ctx.saved))
