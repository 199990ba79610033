"""`ascendc_op`: `custom_op` for a function that launches kernels, with a fake of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch

from bringup.ops.custom.custom_op import CustomOperator, custom_op


def ascendc_op(
    name: str,
    *,
    mutates_args: Iterable[str] | Literal["unknown"] | None = None,
    device_types: str | Iterable[str] = "npu",
    schema: str | None = None,
) -> Callable[[Callable[..., Any]], CustomOperator]:
    """Make a torch operator of a function that launches kernels on the device; a decorator.

    It is `custom_op` for "npu". Where the function returns one new tensor, the operator has a fake:
    contiguous, of the shape and dtype of the first tensor argument, as `alloc_like` gives it.
    `register_fake` replaces it.

    Args:
        name: `"namespace::name"`; the operator is `torch.ops.namespace.name`.
        mutates_args: names of the tensor parameters that the kernels write.
        device_types: device types that the function is for.
        schema: the schema, instead of the one inferred from the annotations.

    Raises:
        SchemaError: the name or the signature is wrong, or the operator is defined already.
    """

    make = custom_op(name, mutates_args=mutates_args, device_types=device_types, schema=schema)

    def define(function: Callable[..., Any]) -> CustomOperator:
        operator = make(function)
        if (like := _first_tensor(operator.overload._schema)) is not None:
            operator.register_fake(_fake_like(*like))
        return operator

    return define


def _first_tensor(schema: Any) -> tuple[int, str] | None:
    """Place and name of the first tensor argument, for an operator that returns one new tensor."""
    returns = schema.returns
    if len(returns) != 1 or str(returns[0].type) != "Tensor" or returns[0].alias_info is not None:
        return None
    for index, argument in enumerate(schema.arguments):
        if str(argument.type) == "Tensor":
            return index, argument.name
    return None


def _fake_like(index: int, name: str) -> Callable[..., torch.Tensor]:
    def fake(*args: Any, **kwargs: Any) -> torch.Tensor:
        like: torch.Tensor = args[index] if index < len(args) else kwargs[name]
        return like.new_empty(like.shape)

    return fake
