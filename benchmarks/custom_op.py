"""Rows: a Python function as an operator, called and defined, against `torch.library.custom_op`.

The function is the same on both sides and allocates its output with `empty_like`, so the rows show
what surrounds it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks._harness import Row, compare
from bringup import ops

_numbers = itertools.count()


def _binary(x: Tensor, y: Tensor) -> Tensor:
    return torch.empty_like(x)


def _many(
    a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor, g: Tensor, h: Tensor,
    i: int, j: int, k: int, m: int, s: float, t: float,
) -> Tensor:  # fmt: skip
    return torch.empty_like(a)


for _function in (_binary, _many):  # real types: torch.library evaluates no names of other modules
    _function.__annotations__ = {
        name: {"Tensor": Tensor, "int": int, "float": float}[text]
        for name, text in _function.__annotations__.items()
    }


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    x, y = ctx.saved_tensors
    return grad * y, grad * x


def _pair(function: Callable[..., Any]) -> tuple[Any, Any]:
    number = next(_numbers)
    return (
        ops.custom_op(f"bringup_benchmark_custom::ours{number}", function),
        torch.library.custom_op(
            f"bringup_benchmark_custom::theirs{number}", function, mutates_args=()
        ),
    )


def _define_ours() -> None:
    operator = ops.custom_op(f"bringup_benchmark_custom::defined{next(_numbers)}", _binary)
    operator.register_fake(torch.empty_like)
    operator.undefine()


def _define_theirs() -> None:
    name = f"bringup_benchmark_custom::defined{next(_numbers)}"
    operator = torch.library.custom_op(name, _binary, mutates_args=())
    operator.register_fake(torch.empty_like)
    operator._lib._destroy()


def _step(operator: Callable[..., Tensor], x: Tensor, y: Tensor, ones: Tensor) -> object:
    return torch.autograd.grad(operator(x, y), (x, y), ones)


def run(*, quick: bool = False) -> list[Row]:
    """Calls without and with gradients, in autocast, with many arguments; one definition."""
    rounds = 5 if quick else 41
    ours, theirs = _pair(_binary)
    for operator in (ours, theirs):
        operator.register_autograd(_backward, setup_context=_setup)
        operator.register_autocast("cpu", torch.bfloat16)
    ours_many, theirs_many = _pair(_many)
    x, y = torch.randn(16), torch.randn(16)
    gx, gy = x.clone().requires_grad_(), y.clone().requires_grad_()
    many = (*[x] * 8, 1, 2, 3, 4, 0.5, 0.25)
    row = partial(compare, peer_name="custom_op", rounds=rounds)

    rows = [
        row("custom_op call", partial(ours, x, y), partial(theirs, x, y), budget=0.5),
        row("custom_op call, 14 arguments", partial(ours_many, *many), partial(theirs_many, *many)),
        row(
            "custom_op call recording autograd",
            partial(ours, gx, gy),
            partial(theirs, gx, gy),
            budget=0.5,
        ),
        row(
            "custom_op call and backward",
            partial(_step, ours, gx, gy, x),
            partial(_step, theirs, gx, gy, x),
        ),
        row(
            "custom_op call through torch.ops",
            partial(ours.overload, x, y),
            partial(theirs._opoverload, x, y),
        ),
    ]
    with torch.inference_mode():
        rows.append(
            row("custom_op call in inference mode", partial(ours, x, y), partial(theirs, x, y))
        )
    with torch.autocast("cpu"):
        rows.append(row("custom_op call in autocast", partial(ours, x, y), partial(theirs, x, y)))
    rows.append(row("custom_op definition with fake", _define_ours, _define_theirs, calls=20))
    return rows
