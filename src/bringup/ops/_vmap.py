"""Batching: the kernel at the FuncTorchBatched key, and the rules that need not be written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch

from bringup.errors import SchemaError
from bringup.ops._python_kernel import Slot

__all__ = ["GeneratedRule", "batching_kernel", "rule_for"]

GeneratedRule = Literal["pointwise", "loop"]


def batching_kernel(overload: Any, slot: Slot) -> Callable[..., Any]:
    """The kernel that runs the rule in `slot`; registered with the key set as first argument."""
    from torch._functorch.autograd_function import custom_function_call_vmap_helper
    from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        interpreter: Any = retrieve_current_functorch_interpreter()
        return custom_function_call_vmap_helper(
            interpreter, slot.function, overload, *args, **kwargs
        )

    return kernel


def rule_for(overload: Any, rule: Callable[..., Any] | GeneratedRule) -> Callable[..., Any]:
    """`rule` itself, or the generated one of that name."""
    if callable(rule):
        return rule
    if rule == "pointwise":
        return _pointwise(overload)
    if rule == "loop":
        return _loop(overload)
    raise SchemaError(
        f"register_vmap({rule!r}): expected a function (info, in_dims, *args), 'pointwise' or "
        "'loop'"
    )


def _pointwise(overload: Any) -> Callable[..., Any]:
    """One call on the batch: every tensor gets the batch in front, ranks aligned behind it."""

    def rule(info: Any, in_dims: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        ranks = [
            tensor.dim() - (dim is not None)
            for value, dims in zip(args, in_dims, strict=True)
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

        result = overload(*_map(batched, args, in_dims), **kwargs)
        return result, _out_dims(result)

    return rule


def _loop(overload: Any) -> Callable[..., Any]:
    """One call a sample, results stacked."""

    def rule(info: Any, in_dims: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        def sample(number: int) -> Any:
            return overload(
                *_map(
                    lambda tensor, dim: tensor if dim is None else tensor.select(dim, number),
                    args,
                    in_dims,
                ),
                **kwargs,
            )

        result = _stack([sample(number) for number in range(info.batch_size)])
        return result, _out_dims(result)

    return rule


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
