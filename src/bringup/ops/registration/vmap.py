"""Batching: the kernel at the FuncTorchBatched key, and the rules that need not be written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode

from bringup.errors import SchemaError
from bringup.ops.registration.python_kernel import FunctionCell
from bringup.ops.schema.operator_facts import Facts

GeneratedRule = Literal["pointwise", "loop"]


def batching_kernel(overload: Any, facts: Facts, slot: FunctionCell) -> Callable[..., Any]:
    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        from torch._functorch.autograd_function import custom_function_call_vmap_helper
        from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

        def call(*values: Any) -> Any:
            positional, keywords = facts.split(values)
            return overload(*positional, **keywords)

        interpreter: Any = retrieve_current_functorch_interpreter()
        return custom_function_call_vmap_helper(
            interpreter, slot.function, call, *facts.values(args, kwargs)
        )

    return kernel


def rule_for(
    overload: Any, facts: Facts, rule: Callable[..., Any] | GeneratedRule
) -> Callable[..., Any]:
    """Return the rule (info, in_dims, *values) over all arguments that `rule` is or names."""
    if rule in ("pointwise", "loop"):
        made = _pointwise(overload, facts) if rule == "pointwise" else _loop(overload, facts)
        return _drawing(overload, facts, _writing_batches(facts, made))
    if not callable(rule):
        raise SchemaError(
            f"register_vmap({rule!r}): expected a function (info, in_dims, *args), 'pointwise' or "
            "'loop'"
        )

    def call(info: Any, in_dims: Sequence[Any], *values: Any) -> Any:
        positional, keywords = facts.split(values)
        return rule(info, in_dims, *positional, **keywords)

    return call


def _writing_batches(facts: Facts, rule: Callable[..., Any]) -> Callable[..., Any]:
    """`rule` where written arguments have a batch: all samples would write one tensor otherwise."""
    if not facts.written:
        return rule

    def call(info: Any, in_dims: Sequence[Any], *values: Any) -> Any:
        for index in facts.written:
            if any(dim is None for _, dim in _tensors(values[index], in_dims[index])):
                raise RuntimeError(
                    f"vmap: {facts.name} writes its argument '{facts.names[index]}', which has no "
                    "batch dimension, once for every sample; pass it with one"
                )
        return rule(info, in_dims, *values)

    return call


def _drawing(overload: Any, facts: Facts, rule: Callable[..., Any]) -> Callable[..., Any]:
    """`rule` for an operator that draws: each sample has numbers of its own."""
    if torch.Tag.nondeterministic_seeded not in overload.tags:
        return rule

    def call(info: Any, in_dims: Sequence[Any], *values: Any) -> Any:
        if info.randomness != "different":
            raise RuntimeError(
                f"vmap: {facts.name} draws random numbers, which differ between samples; pass "
                "randomness='different'"
            )
        return rule(info, in_dims, *values)

    return call


def _pointwise(overload: Any, facts: Facts) -> Callable[..., Any]:
    """Return one call on the batch, which is in front of every tensor, ranks aligned behind."""

    def rule(info: Any, in_dims: Sequence[Any], *values: Any) -> Any:
        ranks = [
            tensor.dim() - (dim is not None)
            for value, dims in zip(values, in_dims, strict=True)
            for tensor, dim in _tensors(value, dims)
        ]
        rank = max(ranks)

        def batched(tensor: torch.Tensor, dim: int | None) -> torch.Tensor:
            if dim is None:
                tensor = tensor.expand(info.batch_size, *tensor.shape)
            else:
                tensor = tensor.movedim(dim, 0)
            missing = [1] * (rank - tensor.dim() + 1)
            return tensor.reshape(tensor.shape[0], *missing, *tensor.shape[1:])

        positional, keywords = facts.split(_map(batched, values, in_dims))
        result = overload(*positional, **keywords)
        return _written_as_given(facts, in_dims, values, result, _out_dims(result))

    return rule


def _loop(overload: Any, facts: Facts) -> Callable[..., Any]:
    """Return one call a sample, results stacked."""

    def rule(info: Any, in_dims: Sequence[Any], *values: Any) -> Any:
        def sample(number: int) -> Any:
            def select(tensor: torch.Tensor, dim: int | None) -> torch.Tensor:
                return tensor if dim is None else tensor.select(dim, number)

            positional, keywords = facts.split(_map(select, values, in_dims))
            return overload(*positional, **keywords)

        if info.batch_size == 0:
            return _empty(overload, facts, in_dims, values)
        result = _stack([sample(number) for number in range(info.batch_size)])
        return _written_as_given(facts, in_dims, values, result, _out_dims(result))

    return rule


def _empty(overload: Any, facts: Facts, in_dims: Sequence[Any], values: Sequence[Any]) -> Any:
    """Return the fake's result for no samples, without functorch's keys, which restore modes."""
    with torch._C._DisableFuncTorch(), FakeTensorMode():

        def select(tensor: torch.Tensor, dim: int | None) -> torch.Tensor:
            sizes = list(tensor.shape)
            if dim is not None:
                del sizes[dim]
            return torch.empty(sizes, dtype=tensor.dtype, device=tensor.device)

        positional, keywords = facts.split(_map(select, values, in_dims))
        try:
            sample = overload(*positional, **keywords)
        except DynamicOutputShapeException as error:
            raise RuntimeError(
                f"vmap: {facts.name} has a result whose size depends on data, and an empty batch "
                "has no sample to take it from; call it with a batch of 1 or more"
            ) from error

    def none_of(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.empty((0, *value.shape), dtype=value.dtype, device=value.device)
        return type(value)(map(none_of, value)) if isinstance(value, (list, tuple)) else value

    result = none_of(sample)
    return _written_as_given(facts, in_dims, values, result, _out_dims(result))


def _written_as_given(
    facts: Facts, in_dims: Sequence[Any], values: Sequence[Any], result: Any, out_dims: Any
) -> tuple[Any, Any]:
    """Result and batch dimensions, where a return that is a written argument is that argument."""
    if all(index < 0 for index in facts.returned):
        return result, out_dims
    pairs = [
        (values[index], in_dims[index]) if index >= 0 else (part, dim)
        for index, part, dim in zip(
            facts.returned, _parts(facts, result), _parts(facts, out_dims), strict=True
        )
    ]
    if len(pairs) == 1:
        return pairs[0]
    return tuple(part for part, _ in pairs), tuple(dim for _, dim in pairs)


def _parts(facts: Facts, value: Any) -> Sequence[Any]:
    return (value,) if len(facts.returned) == 1 else value


def _tensors(value: Any, dims: Any) -> list[tuple[torch.Tensor, int | None]]:
    if isinstance(value, torch.Tensor):
        return [(value, dims)]
    if isinstance(value, (list, tuple)) and value:
        each = dims if isinstance(dims, (list, tuple)) else [dims] * len(value)
        return [pair for item, dim in zip(value, each, strict=True) for pair in _tensors(item, dim)]
    return []


def _map(function: Callable[[Any, Any], Any], value: Any, dims: Any) -> Any:
    """`value` with `function(tensor, dim)` for each of its tensors."""
    if isinstance(value, torch.Tensor):
        return function(value, dims)
    if isinstance(value, (list, tuple)):
        each = dims if isinstance(dims, (list, tuple)) else [dims] * len(value)
        return type(value)(_map(function, v, d) for v, d in zip(value, each, strict=True))
    return value


def _stack(results: Sequence[Any]) -> Any:
    first = results[0]
    if isinstance(first, torch.Tensor):
        return torch.stack(list(results))
    if isinstance(first, (list, tuple)):
        return type(first)(_stack(part) for part in zip(*results, strict=True))
    if any(result != first for result in results):
        raise RuntimeError(
            f"vmap by samples: a result that is no tensor differs between samples: {first!r} and "
            f"{next(r for r in results if r != first)!r}"
        )
    return first


def _out_dims(result: Any) -> Any:
    if isinstance(result, (list, tuple)):
        return type(result)(_out_dims(part) for part in result)
    return 0 if isinstance(result, torch.Tensor) else None
