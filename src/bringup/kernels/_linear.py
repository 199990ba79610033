"""Linear layers over frozen weights, packed as `csrc/panel_linear.h` says, int8 forms too."""

from __future__ import annotations

import inspect

import torch
from torch.nn import functional

from bringup import ops
from bringup.kernels._sources import UNROLLED, kernel_source

PANEL = 16  # columns in a panel of a packed weight: kPanel in panel_gemm.h
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")

_FLOATS = (torch.float32, torch.float64)
_WIDTH = f"panels.shape[0] * {PANEL} - padding"
# Elements of depth that lie side by side, so that they are one 32-bit word.
_IN_WORD = {torch.float32: 1, torch.float64: 1, torch.bfloat16: 2, torch.uint8: 4}
_PANELS = (
    ops.shape(
        "panels", "panels.shape[0]", "(x.shape[1] + panels.shape[3] - 1) // panels.shape[3]",
        str(PANEL), "panels.shape[3]",
    ),
    ops.shape("x", "x.shape[0]", "x.shape[1]"), ops.shape("bias", _WIDTH),
)  # fmt: skip
_BYTES = (
    ops.dtype("x", torch.float32),
    ops.dtype("panels", torch.uint8),
    ops.same_dtype("x", "scales", "bias"),
    ops.shape("panels", "panels.shape[0]", "panels.shape[1]", str(PANEL), "4"),
    *_PANELS,
    ops.shape("scales", _WIDTH),
)


def _operator(
    name: str, arguments: str, *checks: ops.InputConstraint, **macros: str
) -> ops.KernelOperator:
    return ops.kernel_op(
        f"bringup::{name}({arguments}, Tensor? bias=None, int padding=0, str activation='none') "
        "-> Tensor",
        source=kernel_source(name),
        dtypes=macros,
        flags=UNROLLED,
        strided=("x",),
        outputs=ops.empty("x.shape[0]", _WIDTH, dtype="x"),
        checks=checks,
    )


packed_linear = _operator(
    "packed_linear", "Tensor x, Tensor panels", ops.dtype("x", *_FLOATS),
    ops.dtype("panels", *_FLOATS, torch.bfloat16), ops.same_dtype("x", "bias"), *_PANELS,
    SCALAR="x", WEIGHT="panels",
)  # fmt: skip
packed_linear_int8 = _operator(
    "packed_linear_int8", "Tensor x, Tensor panels, Tensor scales", *_BYTES
)
packed_linear_w8a8 = _operator(
    "packed_linear_w8a8", "Tensor x, Tensor panels, Tensor scales", *_BYTES
)

_TAIL = """
        bias: [n], of x's dtype, or None.
        padding: how many columns of the last panel are none: -n modulo 16.
        activation: "none", "relu", "gelu" (the exact one), "gelu_tanh" or "silu".

    Returns:
        [m, n].

    Raises:
        ContractError: dtypes or shapes do not fit.
        KernelError: padding is not between 0 and 15, another activation, or panels that are neither
            of x's dtype nor bfloat16.
    """
_DESCRIPTIONS = {
    packed_linear: """activation(x times a frozen weight that lies in panels, plus bias). A row has
    the same bits alone and among others, on one thread and on several.

    Args:
        x: [m, k], float32 or float64, any strides.
        panels: [ceil(n / 16), k, 16, 1] of x's dtype, or [ceil(n / 16), ceil(k / 2), 16, 2] of
            bfloat16 where x is float32, as `pack_weight` makes them.""",
    packed_linear_int8: """`packed_linear` over a weight in int8 with a scale for each column. The
    products are float32's: only the weight was rounded.

    Args:
        x: [m, k], float32, any strides.
        panels: uint8 [ceil(n / 16), ceil(k / 4), 16, 4], as `pack_weight_int8` makes them.
        scales: [n], by which the columns are multiplied before the bias is added.""",
    packed_linear_w8a8: """`packed_linear` over a weight in int8, the rows of x rounded to int8 too,
    each with a scale of its own: its largest magnitude becomes 127. Sums are exact; a row that is
    not finite comes out as NaN. k is at most 65536 (`KernelError`).

    Args:
        x: [m, k], float32, any strides.
        panels: uint8 [ceil(n / 16), ceil(k / 4), 16, 4], as `pack_weight_int8` makes them.
        scales: [n], by which the columns are multiplied before the bias is added.""",
}
for _kernel, _text in _DESCRIPTIONS.items():
    _kernel.__doc__ = f"{_kernel.schema}\n\n{inspect.cleandoc(_text + _TAIL)}"


def _panels(weight: torch.Tensor, in_word: int) -> torch.Tensor:
    """[panels, words, 16, in_word], contiguous, filled up with zeros."""
    padded = functional.pad(weight, (0, -weight.shape[1] % in_word, 0, -weight.shape[0] % PANEL))
    words = padded.unflatten(0, (-1, PANEL)).unflatten(2, (-1, in_word))
    return words.transpose(1, 2).clone(memory_format=torch.contiguous_format)


def _check(operator: str, weight: torch.Tensor, dtype: torch.dtype) -> None:
    """`ValueError` for what `_panels` does not take."""
    if weight.dim() != 2:
        raise ValueError(f"{operator}: expected a weight [n, k], got shape {list(weight.shape)}")
    if dtype not in _IN_WORD:
        raise ValueError(
            f"{operator}: expected float32, float64 or bfloat16 for the panels, got {dtype}"
        )


def _empty_panels(operator: str, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Of the shape that `_panels` gives."""
    _check(operator, weight, dtype)
    (columns, depth), in_word = weight.shape, _IN_WORD[dtype]
    words = (depth + in_word - 1) // in_word
    return weight.new_empty((columns + PANEL - 1) // PANEL, words, PANEL, in_word, dtype=dtype)


@ops.custom_op("bringup::pack_weight")
def pack_weight(weight: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a linear layer's weight [n, k] as `packed_linear` takes it: panels of 16 columns,
    contiguous, what is behind column n and depth k zeros.

    Args:
        weight: [n, k], float32 or float64, any strides.
        dtype: of the panels; that of the weight by default. torch.bfloat16 rounds to nearest even.

    Returns:
        [ceil(n / 16), k, 16, 1], or [ceil(n / 16), ceil(k / 2), 16, 2] of bfloat16.

    Raises:
        ValueError: it is not a matrix, or a dtype that panels cannot have.
    """
    wanted = dtype or weight.dtype
    _check("pack_weight", weight, wanted)
    return _panels(weight.to(wanted), _IN_WORD[wanted])


@pack_weight.register_fake
def _(weight: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    return _empty_panels("pack_weight", weight, dtype or weight.dtype)


@ops.custom_op("bringup::pack_weight_int8")
def pack_weight_int8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a linear layer's weight [n, k] as `packed_linear_int8` and `packed_linear_w8a8` take
    it. The largest magnitude of a row of the weight becomes 127, the others are rounded to nearest
    even.

    Args:
        weight: [n, k], float32, any strides.

    Returns:
        The panels, uint8 [ceil(n / 16), ceil(k / 4), 16, 4], each element with 128 added; and the
        scales [n].

    Raises:
        ValueError: it is not a matrix, or has elements that are not finite.
    """
    _check("pack_weight_int8", weight, torch.uint8)
    top = weight.abs().amax(1) if weight.shape[1] else weight.new_zeros(weight.shape[0])
    if not bool(top.isfinite().all()):
        raise ValueError("pack_weight_int8: the weight has elements that are not finite")
    scales = torch.where(top > 0, top / 127, torch.ones_like(top))
    whole = torch.round(weight / scales[:, None]).clamp(-127, 127).to(torch.int16)
    return (_panels(whole, _IN_WORD[torch.uint8]) + 128).to(torch.uint8), scales


@pack_weight_int8.register_fake
def _(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        _empty_panels("pack_weight_int8", weight, torch.uint8),
        weight.new_empty(weight.shape[0]),
    )
