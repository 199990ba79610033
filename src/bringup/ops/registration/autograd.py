"""Gradients of operators that are written in Python: the kernel at the Autograd key.

The node is a ctx-style `torch.autograd.Function`, a third of the cost of the setup_context style,
below functorch's layers like torch's own kernels, so `torch.func` needs nothing else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from bringup.errors import SchemaError
from bringup.ops.schema.operator_facts import Facts

_AUTOGRAD = torch._C.DispatchKey.AutogradFunctionality
_is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
call_boxed = torch._C._dispatch_call_boxed
_set_excluded = torch._C._dispatch_tls_set_dispatch_key_excluded
_after_autograd = torch._C._after_autograd_keyset
_any_requires_grad = torch._C._any_requires_grad
_in_functorch = torch._C._are_functorch_transforms_active
_is_grad_enabled = torch.is_grad_enabled
_SETUP_NAMES = ("ctx", "inputs", "keyword_only_inputs", "output")


@dataclass
class Formula:
    """What is registered for an operator's gradient. Changing it changes the next call."""

    backward: Callable[..., Any] | None = None
    setup_context: Callable[..., Any] | None = None
    jvp: Callable[..., Any] | None = None

    def set_backward(
        self, facts: Facts, backward: Callable[..., Any], setup_context: Callable[..., Any] | None
    ) -> None:
        """Register a backward; `SchemaError` where the operator cannot have it."""
        if facts.written or not facts.returns:
            what = (
                f"writes its argument '{facts.names[facts.written[0]]}'"
                if facts.written
                else "returns nothing"
            )
            raise SchemaError(
                f"{facts.name} {what}; only an operator that returns new tensors can have a "
                "backward: define one that does, and write its result where it belongs"
            )
        self.backward = backward
        self.setup_context = setup_context and _positional_setup(facts, setup_context)


def _positional_setup(facts: Facts, setup: Callable[..., Any]) -> Callable[..., Any]:
    """`setup` called as (ctx, inputs, output) or (ctx, inputs, keyword_only_inputs, output)."""
    has_keywords = facts.positional < len(facts.names)
    wanted = [n for n in _SETUP_NAMES if has_keywords or n != "keyword_only_inputs"]
    try:
        names = list(inspect.signature(setup).parameters)
    except ValueError:  # a builtin that does not tell
        return setup
    if len(names) != len(wanted):
        raise SchemaError(
            f"{facts.name}: setup_context takes ({', '.join(names)}), expected "
            f"({', '.join(wanted)}){', because some arguments are keyword-only' * has_keywords}"
        )
    if names != wanted and set(names) == set(wanted):  # the usual names in another order
        return lambda *values: setup(**dict(zip(wanted, values, strict=True)))
    return setup


def below_autograd(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run `call` below autograd, at a fourth of the cost of torch's own guard."""
    if _is_excluded(_AUTOGRAD):
        return call(*args, **kwargs)
    _set_excluded(_AUTOGRAD, True)
    try:
        return call(*args, **kwargs)
    finally:
        _set_excluded(_AUTOGRAD, False)


def runner_below_autograd(overload: Any) -> Callable[..., Any]:
    """Return `below_autograd` of an operator for callers above it and have no overrides."""
    handle = overload._handle

    def run(*args: Any) -> Any:
        _set_excluded(_AUTOGRAD, True)
        try:
            return call_boxed(handle, *args)
        finally:
            _set_excluded(_AUTOGRAD, False)

    return run


def node_class(facts: Facts, formula: Formula, name: str = "") -> Any:
    """Return the autograd function of an operator, called `name` + "Backward": `apply(*values,
    run)`, of all arguments in schema order, records `run(*values)`, which runs below autograd.
    Unless `facts.simple`, `run` is a `_Call`, which takes lists of tensors apart.
    """
    members = _simple_members(facts, formula) if facts.simple else _general_members(facts, formula)
    return _function(facts, members, name)


def direct_node_class(facts: Facts, formula: Formula, run: Callable[..., Any]) -> Any:
    """Return it for a simple operator outside forward mode: `apply(*values)`."""

    def forward(ctx: Any, *values: Any) -> Any:
        result = run(*values)
        setup = formula.setup_context
        if setup is not None:
            setup(ctx, values, result)
        if facts.required < facts.positional:
            ctx.bringup_passed = facts.passed(values)
        return result

    def backward(ctx: Any, *grads: Any) -> Any:
        if formula.backward is None:
            raise NotImplementedError(_no_backward(facts))
        return _gradients(facts, ctx, formula.backward(ctx, *grads))

    return _function(facts, {"forward": forward, "backward": backward})


def _function(facts: Facts, members: dict[str, Callable[..., Any]], name: str = "") -> Any:
    name = name or facts.name.partition("::")[2].replace(".", "_")
    static = {key: staticmethod(member) for key, member in members.items()}
    return type(
        name, (_SingleLevelFunction,), {**static, "_compiled_autograd_key": staticmethod(_key)}
    )


def _simple_members(facts: Facts, formula: Formula) -> dict[str, Callable[..., Any]]:
    count = len(facts.names)

    def forward(ctx: Any, *packed: Any) -> Any:
        values = packed[:count]
        result = packed[count](*values)
        setup = formula.setup_context
        if setup is not None:
            ctx.needs_input_grad = ctx.needs_input_grad[:count]
            setup(ctx, values, result)
            if formula.jvp is not None:
                _save_for_jvp(ctx)
        if facts.required < facts.positional:
            ctx.bringup_passed = facts.passed(values)
        return result

    def backward(ctx: Any, *grads: Any) -> Any:
        if formula.backward is None:
            raise NotImplementedError(_no_backward(facts))
        ctx.needs_input_grad = ctx.needs_input_grad[:count]
        return (*_gradients(facts, ctx, formula.backward(ctx, *grads)), None)

    def jvp(ctx: Any, *tangents: Any) -> Any:
        if formula.jvp is None:
            raise NotImplementedError(no_jvp(facts))
        return formula.jvp(ctx, *tangents[:count])

    return {"forward": forward, "backward": backward, "jvp": jvp}


def _general_members(facts: Facts, formula: Formula) -> dict[str, Callable[..., Any]]:
    def forward(ctx: Any, *packed: Any) -> Any:
        call: _Call = packed[-1]
        values = packed[:-1]
        result = call(*values)
        ctx.bringup_call = call
        ctx.needs_input_grad = tuple(call.rebuild(ctx.needs_input_grad))
        inputs = call.rebuild(values)
        if facts.required < facts.positional:
            ctx.bringup_passed = facts.passed(inputs)
        if formula.setup_context is not None:
            args, kwargs = facts.split(inputs)
            formula.setup_context(ctx, args, *((kwargs,) if kwargs else ()), result)
            if formula.jvp is not None:
                _save_for_jvp(ctx)
        return call.outputs(ctx, inputs, result)

    def backward(ctx: Any, *grads: Any) -> Any:
        if formula.backward is None:
            raise NotImplementedError(_no_backward(facts))
        call = ctx.bringup_call
        ctx.written_gradients = grads[call.output_count :]
        result = _gradients(facts, ctx, formula.backward(ctx, *call.pack(grads)))
        return (*call.flatten_gradients(result), None)

    def jvp(ctx: Any, *tangents: Any) -> Any:
        if formula.jvp is None:
            raise NotImplementedError(no_jvp(facts))
        call = ctx.bringup_call
        return call.flatten_outputs(formula.jvp(ctx, *call.rebuild(tangents[:-1])))

    return {"forward": forward, "backward": backward, "jvp": jvp}


def _key(ctx: Any) -> tuple[int, ...]:
    return (ctx._autograd_function_id,)


def _save_for_jvp(ctx: Any) -> None:
    """Let `jvp` read `ctx.saved_tensors` after a mere `save_for_backward`."""
    saved = ctx.to_save
    if saved is not None and ctx.saved_for_forward is None:
        ctx.save_for_forward(*saved)


def no_jvp(facts: Facts) -> str:
    """Return the words of refuse_tangents in native/torch/ops/boxed.cpp."""
    return (
        f"{facts.name} has no forward-mode derivative, but an input has a tangent; give it one "
        "with register_jvp(jvp), or detach the input"
    )


def _gradients(facts: Facts, ctx: Any, result: Any) -> tuple[Any, ...]:
    """Return one gradient an argument; trailing keyword-only and positional ones may be absent."""
    gradients = result if isinstance(result, tuple) else (result,)
    missing = len(facts.names) - len(gradients)
    if missing == 0:
        return gradients
    if len(gradients) in (facts.positional, getattr(ctx, "bringup_passed", -1)):
        return (*gradients, *[None] * missing)
    raise RuntimeError(
        f"the backward of {facts.name} returned {len(gradients)} gradients; expected one for each "
        f"of its arguments ({', '.join(facts.names)}), None where there is none"
    )


def _no_backward(facts: Facts) -> str:
    """Return the words of MissingBackward in native/torch/ops/autograd.cpp."""
    return f"{facts.name} has no backward, but a gradient through it was asked for; " + (
        "it writes its arguments: call it on detached tensors, or on clones under torch.no_grad()"
        if facts.written
        else "give it one with register_autograd(), or call it under torch.no_grad()"
    )


class _Call:
    """One recorded call of an operator with lists, keyword-only or written arguments."""

    def __init__(self, facts: Facts, run: Callable[..., Any], values: Sequence[Any]) -> None:
        self._facts = facts
        self._run = run
        # only these: a recorded call keeps no input alive that was not saved
        self._written = tuple(values[i] for i in facts.returned) if facts.returns_written else ()
        self._sizes = {
            i: len(values[i]) for i in facts.lists if isinstance(values[i], (list, tuple))
        }
        self._spec: list[int | None] = []  # for each output the length of its list, or None
        self._is_tuple = False

    def flatten(self, values: Sequence[Any]) -> list[Any]:
        flat: list[Any] = []
        for index, value in enumerate(values):
            if index in self._sizes:
                flat += value
            else:
                flat.append(value)
        return flat

    def rebuild(self, flat: Sequence[Any]) -> list[Any]:
        """Return the arguments in schema order, or what stands for them (tangents, flags)."""
        stream = iter(flat)
        return [
            [next(stream) for _ in range(self._sizes[i])] if i in self._sizes else next(stream)
            for i in range(len(self._facts.names))
        ]

    def __call__(self, *flat: Any) -> Any:
        args, kwargs = self._facts.split(self.rebuild(flat))
        return self._run(*args, **kwargs)

    def outputs(self, ctx: Any, inputs: Sequence[Any], result: Any) -> Any:
        """Return what the node returns: the operator's outputs, then the tensors that it wrote."""
        self._is_tuple = isinstance(result, tuple)
        parts = self._parts(result)
        self._spec = [len(p) if isinstance(p, list) else None for p in parts]
        outputs = self.flatten_outputs(result)
        written = [t for _, t in self._facts.tensors_of(inputs, self._facts.written)]
        if written:
            ctx.mark_dirty(*written)
        return (*outputs, *(t for t in written if not any(t is o for o in outputs)))

    @property
    def output_count(self) -> int:
        """Return how many tensors were returned, lists taken apart, before written ones."""
        return sum(1 if size is None else size for size in self._spec)

    def flatten_outputs(self, result: Any) -> tuple[Any, ...]:
        """Outputs, or their tangents, with lists taken apart."""
        return tuple(
            item
            for part in self._parts(result)
            for item in (part if isinstance(part, list) else (part,))
        )

    def _parts(self, result: Any) -> tuple[Any, ...]:
        if not self._facts.returns or self._facts.returns_written:
            return ()
        return result if isinstance(result, tuple) else (result,)

    def pack(self, flat: Sequence[Any]) -> tuple[Any, ...]:
        """Outputs, or their gradients, as the operator returns them."""
        stream = iter(flat)
        return tuple(
            next(stream) if size is None else [next(stream) for _ in range(size)]
            for size in self._spec
        )

    def result(self, flat: Sequence[Any]) -> Any:
        if self._facts.returns_written:
            return self._written[0] if len(self._written) == 1 else self._written
        packed = self.pack(flat)
        if self._is_tuple or not packed:
            return packed or None
        return packed[0]

    def flatten_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        """Return the gradients in the order of `flatten`."""
        flat: list[Any] = []
        for index, gradient in enumerate(gradients):
            size = self._sizes.get(index)
            if size is None:
                flat.append(gradient)
            elif gradient is None:
                flat += [None] * size
            elif len(gradient) == size:
                flat += gradient
            else:
                raise RuntimeError(
                    f"the backward of {self._facts.name} returned {len(gradient)} gradients for "
                    f"the list '{self._facts.names[index]}' of {size} tensors"
                )
        return flat


def autograd_kernel(facts: Facts, overload: Any, node: Any) -> Callable[..., Any]:
    """Return the kernel at the Autograd key; registered with the key set as its first argument."""
    redispatch = overload._handle.redispatch_boxed
    record = _record_simple if facts.simple else _record_general
    any_requires_grad = _any_in_lists_requires_grad if facts.lists else _any_requires_grad
    apply = node.apply

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if forward_ad._current_level >= 0 or (
            _is_grad_enabled() and any_requires_grad(*args, **kwargs)
        ):
            run = partial(below_autograd, redispatch, keyset & _after_autograd)
            if not _in_functorch():
                return record(facts, apply, run, args, kwargs)
            with enable_single_level_autograd_function():
                return record(facts, apply, _in_forward_mode_of_now(run), args, kwargs)
        return below_autograd(redispatch, keyset & _after_autograd, *args, **kwargs)

    return kernel


def _in_forward_mode_of_now(run: Callable[..., Any]) -> Callable[..., Any]:
    """Run with forward mode on, which `apply` turns off: a jvp around a grad needs it."""
    enabled = torch._C._is_fwd_grad_enabled()

    def call(*args: Any, **kwargs: Any) -> Any:
        with forward_ad._set_fwd_grad_enabled(enabled):
            return run(*args, **kwargs)

    return call


def _any_in_lists_requires_grad(*args: Any, **kwargs: Any) -> bool:
    """torch's own function passes over a list that has a None in it."""
    values = (*args, *kwargs.values())
    lists = [item for value in values if isinstance(value, (list, tuple)) for item in value]
    return bool(_any_requires_grad(*values, *lists))


def _record_simple(
    facts: Facts, apply: Callable[..., Any], run: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    return apply(*args, *facts.defaults[len(args) :], run)


def _record_general(
    facts: Facts, apply: Callable[..., Any], run: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    values = facts.values(args, kwargs)
    if _is_grad_enabled():
        if facts.is_out and _any_in_lists_requires_grad(*values):
            raise RuntimeError(
                f"{facts.name} is an out= operator, which has no gradient, and an argument "
                "requires grad; call it under torch.no_grad(), or on detached tensors"
            )
        _refuse_leaves(facts, values)
    call = _Call(facts, run, values)
    return call.result(apply(*call.flatten(values), call))


def _refuse_leaves(facts: Facts, values: Sequence[Any]) -> None:
    for name, tensor in facts.tensors_of(values, facts.written):
        if not tensor.requires_grad:
            continue
        base = tensor._base if tensor._is_view() else tensor
        if base is not None and base.is_leaf:
            what = "is a view of a leaf" if tensor._is_view() else "is a leaf"
            raise RuntimeError(
                f"{facts.name} writes its argument '{name}', which {what} tensor that requires "
                "grad; call it under torch.no_grad(), or on a clone"
            )
