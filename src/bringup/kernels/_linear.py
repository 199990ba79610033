"""Linear layers over frozen weights: `packed_linear`, and `pack_weight`, which lays a weight out
for it. How it computes is described in `csrc/panel_linear.h`.
"""

from __future__ import annotations

import inspect

import torch
from torch.nn import functional

from bringup import ops
from bringup.kernels._flags import UNROLLED, kernel_source

__all__ = ["ACTIVATIONS", "PANEL", "pack_weight", "packed_linear"]

PANEL = 16  # columns in a panel of packed_linear's weight: kPanel in panel_gemm.h
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")

_WIDTH = f"panels.shape[0] * {PANEL} - padding"

packed_linear = ops.kernel_op(
    "bringup::packed_linear(Tensor x, Tensor panels, Tensor? bias=None, int padding=0, "
    "str activation='none') -> Tensor",
    source=kernel_source("packed_linear"),
    dtypes={"SCALAR": "x"},
    flags=UNROLLED,
    strided=("x",),
    outputs=ops.empty("x.shape[0]", _WIDTH, dtype="x"),
    checks=(
        ops.dtype("x", torch.float32, torch.float64),
        ops.same_dtype("x", "panels", "bias"),
        ops.shape("panels", "panels.shape[0]", "x.shape[1]", str(PANEL)),
        ops.shape("x", "x.shape[0]", "panels.shape[1]"),
        ops.shape("bias", _WIDTH),
    ),
)

_TEXT = """activation(x times a frozen weight that lies in panels, plus bias). A row has the same
    bits alone and among others, on one thread and on several.

    Args:
        x: [m, k], float32 or float64, any strides.
        panels: [ceil(n / 16), k, 16], of the same dtype, as `pack_weight` makes them.
        bias: [n], of the same dtype, or None.
        padding: how many columns of the last panel are none: -n modulo 16.
        activation: "none", "relu", "gelu" (the exact one), "gelu_tanh" or "silu".

    Returns:
        [m, n].

    Raises:
        ContractError: dtypes or shapes do not fit.
        KernelError: padding is not between 0 and 15, or another activation.
    """
packed_linear.__doc__ = f"{packed_linear.schema}\n\n{inspect.cleandoc(_TEXT)}"


@ops.custom_op("bringup::pack_weight")
def pack_weight(weight: torch.Tensor) -> torch.Tensor:
    """A linear layer's weight [n, k] as `packed_linear` takes it: panels [ceil(n / 16), k, 16],
    contiguous, what is behind column n zeros.

    Args:
        weight: [n, k], float32 or float64, any strides.

    Raises:
        ValueError: it is not a matrix.
    """
    if weight.dim() != 2:
        raise ValueError(f"pack_weight: expected a weight [n, k], got shape {list(weight.shape)}")
    padded = functional.pad(weight, (0, 0, 0, -weight.shape[0] % PANEL))
    panels = padded.unflatten(0, (-1, PANEL)).transpose(1, 2)
    return panels.clone(memory_format=torch.contiguous_format)


@pack_weight.register_fake
def _(weight: torch.Tensor) -> torch.Tensor:
    if weight.dim() != 2:
        raise ValueError(f"pack_weight: expected a weight [n, k], got shape {list(weight.shape)}")
    count = (weight.shape[0] + PANEL - 1) // PANEL
    return weight.new_empty(count, weight.shape[1], PANEL)
