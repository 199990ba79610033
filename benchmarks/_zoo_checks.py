"""Whether a model of the zoo in mode `serve` gives what eager gives, in several uses of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from benchmarks._architectures import Architecture, Size
from benchmarks._modes import compiled

__all__ = ["CHECKS", "check"]

CHECKS = ("static", "dynamic", "three batches", "bfloat16")


@torch.no_grad()
def check(architecture: Architecture, size: Size, use: str) -> int:
    """Compile one model and compare it with eager at every call, twice: captured, then replayed.

    Args:
        architecture: what to compile.
        size: of the first call.
        use: one of `CHECKS`. `dynamic`: every size is symbolic from the first call on;
            `three batches`: a size becomes symbolic when a call has another one.

    Returns how many results were compared.

    Raises `AssertionError` where a result is not equal by the defaults of
    `torch.testing.assert_close`.
    """
    torch._dynamo.reset()
    dtype = torch.bfloat16 if use == "bfloat16" else torch.float32
    model = architecture.build(size).to(dtype)
    form = compiled(model, "serve", dynamic=True if use == "dynamic" else None)
    count = 0
    for shape in _shapes(architecture, size, use):
        for padded in (False, True, False, True):
            inputs = architecture.inputs(shape, padded=padded)
            given = {name: _as_dtype(value, dtype) for name, value in inputs.items()}
            expected = model(**given).last_hidden_state
            got = form(**given).last_hidden_state  # type: ignore[attr-defined]
            torch.testing.assert_close(got, expected, msg=_where(use, shape, padded))
            count += 1
    return count


def _shapes(architecture: Architecture, size: Size, use: str) -> list[Size]:
    if use == "three batches":
        return [size, *(dataclasses.replace(size, batch=batch) for batch in (1, 3))]
    if use == "dynamic":
        longer, shorter = (
            (size.length + 7, size.length - 3)
            if architecture.takes == "tokens"
            else (size.length, size.length)
        )
        return [
            size,
            dataclasses.replace(size, batch=size.batch + 1, length=longer),
            dataclasses.replace(size, batch=1, length=shorter),
        ]
    return [size]


def _as_dtype(value: Any, dtype: torch.dtype) -> Any:
    is_float = isinstance(value, Tensor) and value.is_floating_point()
    return value.to(dtype) if is_float else value


def _where(use: str, shape: Size, padded: bool) -> Any:
    words = "with padding" if padded else "without padding"
    place = f"{use}, {shape.batch} x {shape.length} {words}"
    return lambda text: f"{place}: {text}"
