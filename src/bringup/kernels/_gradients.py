"""The backward of the shipped operators, of torch operators, so that it has one itself. A formula
computes in float32 or float64 each argument's gradient or None; `register` rounds it once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bringup import ops

Gradients = tuple[Tensor | None, ...]
Inputs = Sequence[Any]
Wanted = Sequence[bool]
Formula = Callable[..., Sequence[Tensor | None]]

# As a schema has them, by what torch calls them.
_TYPES = {"Tensor": "Tensor", "Optional[Tensor]": "Tensor?", "float": "float"}

_library = torch.library.Library("bringup", "FRAGMENT")


def register(operator: ops.KernelOperator, formula: Formula) -> None:
    """Give an operator `bringup::<name>_backward`, a composite of `formula(arguments, wanted,
    *gradients)`; `wanted` says which are asked for, those of results are float32 or float64.
    """
    schema = operator.overload._schema
    name = f"{schema.name}_backward"
    tensors = [item.name for item in schema.arguments if "Tensor" in str(item.type)]
    results = len(schema.returns)
    grads = ", ".join(f"Tensor grad_{number}" for number in range(results))
    arguments = ", ".join(f"{_TYPES[str(item.type)]} {item.name}" for item in schema.arguments)
    returns = ", ".join(f"Tensor grad_{item}" for item in tensors)

    def backward(*given: Any) -> tuple[Tensor | None, ...]:
        inputs, wanted = given[results:-1], given[-1]
        found = formula(inputs, wanted, *map(_wide, given[:results]))
        sources = [
            item
            for item, argument in zip(inputs, schema.arguments, strict=True)
            if argument.name in tensors
        ]
        return tuple(
            gradient.to(source.dtype) if asked and gradient is not None else None
            for gradient, source, asked in zip(found, sources, wanted, strict=True)
        )

    _library.define(
        f"{name.partition('::')[2]}({grads}, {arguments}, bool[] output_mask) -> ({returns})"
    )
    _library.impl(name, backward, "CompositeImplicitAutograd")
    operator.register_backward(name, save=tensors)


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _columns(tensor: Tensor) -> Tensor:
    return tensor.flatten(0, -2).sum(0) if tensor.dim() > 1 else tensor


def _rms(
    total: Tensor, weight: Tensor | None, eps: Any, grad: Tensor, wants_weight: bool
) -> Gradients:
    """Return gradients of total, weight and, where that is a tensor, eps."""
    scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + eps)
    normalized = total * scale
    inner = grad if weight is None else grad * _wide(weight)
    along = (inner * normalized).mean(-1, keepdim=True)
    of_total = scale * (inner - normalized * along)
    of_weight = _columns(grad * normalized) if wants_weight else None
    if not isinstance(eps, Tensor):
        return of_total, of_weight
    of_eps = (along * scale.square()).sum() * (-0.5 * total.shape[-1])
    return of_total, of_weight, of_eps


def rms_norm(inputs: Inputs, wanted: Wanted, grad: Tensor) -> Gradients:
    """x, weight or None, eps."""
    x, weight, eps = inputs
    return _rms(_wide(x), weight, eps, grad, weight is not None and wanted[1])


def add_rms_norm(inputs: Inputs, wanted: Wanted, grad: Tensor, grad_total: Tensor) -> Gradients:
    """x, residual, weight, eps."""
    x, residual, weight, eps = inputs
    of_norm, *others = _rms(_wide(x + residual), weight, eps, grad, wanted[2])
    assert of_norm is not None
    of_total = of_norm + grad_total
    return of_total, of_total, *others


def add_layer_norm(inputs: Inputs, wanted: Wanted, grad: Tensor) -> Gradients:
    """x, residual, weight, bias, eps."""
    x, residual, weight, _, eps = inputs
    total = _wide(x + residual)  # rounded, as forward normalises it
    centred = total - total.mean(-1, keepdim=True)
    scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    normalized = centred * scale
    inner = grad * _wide(weight)
    along = (inner * normalized).mean(-1, keepdim=True)
    of_total = scale * (inner - inner.mean(-1, keepdim=True) - normalized * along)
    of_weight = _columns(grad * normalized) if wanted[2] else None
    return of_total, of_total, of_weight, _columns(grad) if wanted[3] else None


def add_layer_norm_sum(
    inputs: Inputs, wanted: Wanted, grad: Tensor, grad_total: Tensor
) -> Gradients:
    """As `add_layer_norm`."""
    of_norm, _, *others = add_layer_norm(inputs, wanted, grad)
    assert of_norm is not None
    of_total = of_norm + grad_total
    return of_total, of_total, *others


def silu_mul(inputs: Inputs, wanted: Wanted, grad: Tensor) -> Gradients:
    """gate, up."""
    gate, up = map(_wide, inputs)
    sigmoid = torch.sigmoid(gate)
    of_gate = grad * up * sigmoid * (1 + gate * (1 - sigmoid)) if wanted[0] else None
    return of_gate, grad * gate * sigmoid if wanted[1] else None


def bias_gelu(inputs: Inputs, wanted: Wanted, grad: Tensor) -> Gradients:
    """x, bias."""
    x, bias = map(_wide, inputs)
    of_sum = torch.ops.aten.gelu_backward(grad, x + bias)
    return of_sum, _columns(of_sum) if wanted[1] else None


def rotary(inputs: Inputs, wanted: Wanted, grad: Tensor) -> Gradients:
    """x, cos, sin; the gradient is [B, S, H, D]."""
    x, cos, sin = map(_wide, inputs)
    grad = grad.transpose(1, 2)
    of_x = of_cos = of_sin = None
    if wanted[0]:
        low, high = (grad * sin).chunk(2, -1)
        of_x = grad * cos + torch.cat([high, -low], -1)
    if wanted[1]:
        of_cos = (grad * x).sum_to_size(cos.shape)
    if wanted[2]:
        low, high = x.chunk(2, -1)
        of_sin = (grad * torch.cat([-high, low], -1)).sum_to_size(sin.shape)
    return of_x, of_cos, of_sin
