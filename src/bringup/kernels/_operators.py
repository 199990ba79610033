"""The shipped operators: schema, C++ source under `csrc/`, output and input contract, registered
with torch when this is imported. Where they round 16-bit floats is in docs/numerics.md.
"""

from __future__ import annotations

import inspect

import torch

from bringup import jit, ops
from bringup._language.signature import ELEMENT_TYPES
from bringup.kernels import _gradients
from bringup.kernels._sources import UNROLLED
from bringup.kernels._sources import kernel_source as _source

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

_NORM_CHECKS = (
    ops.dtype("x", *_FLOATS),
    ops.same_dtype("x", "residual", "weight"),
    ops.same_shape("x", "residual"),
    ops.shape("weight", "x.shape[-1]"),
)

# In 16 bits an eps of 1e-6 would be a subnormal number, or 0.
_EPS_CHECKS = (ops.dtype("eps", torch.float32, torch.float64), ops.shape("eps"))

_RMS_NORM_CHECKS = (
    ops.dtype("x", *_FLOATS),
    ops.same_dtype("x", "weight"),
    ops.shape("weight", "x.shape[-1]"),
)

_LAYER_NORM_CHECKS = (*_NORM_CHECKS, ops.same_dtype("x", "bias"), ops.shape("bias", "x.shape[-1]"))


def _operator(
    signature: str, *checks: ops.InputConstraint, results: int = 1, **macros: str
) -> ops.KernelOperator:
    """Define an operator whose results are like x; one with a tensor `eps` has the same source."""
    return ops.kernel_op(
        f"bringup::{signature}",
        source=_source(signature.partition("(")[0].removesuffix("_eps")),
        dtypes={"SCALAR": "x", **macros},
        outputs=[ops.empty_like("x")] * results,
        checks=checks,
    )


add_layer_norm = _operator(
    "add_layer_norm(Tensor x, Tensor residual, Tensor weight, Tensor bias, float eps=1e-05) "
    "-> Tensor",
    *_LAYER_NORM_CHECKS,
)

add_layer_norm_sum = _operator(
    "add_layer_norm_sum(Tensor x, Tensor residual, Tensor weight, Tensor bias, float eps=1e-05) "
    "-> (Tensor normalized, Tensor total)",
    *_LAYER_NORM_CHECKS,
    results=2,
)

rms_norm = _operator(
    "rms_norm(Tensor x, Tensor? weight=None, float eps=1e-06) -> Tensor", *_RMS_NORM_CHECKS
)

rms_norm_eps = _operator(
    "rms_norm_eps(Tensor x, Tensor? weight, Tensor eps) -> Tensor",
    *_RMS_NORM_CHECKS,
    *_EPS_CHECKS,
    EPS="eps",
)

add_rms_norm = _operator(
    "add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps=1e-06) -> "
    "(Tensor normalized, Tensor total)",
    *_NORM_CHECKS,
    results=2,
)

add_rms_norm_eps = _operator(
    "add_rms_norm_eps(Tensor x, Tensor residual, Tensor weight, Tensor eps) -> "
    "(Tensor normalized, Tensor total)", *_NORM_CHECKS, *_EPS_CHECKS, results=2, EPS="eps",
)  # fmt: skip

bias_gelu = _operator(
    "bias_gelu(Tensor x, Tensor bias) -> Tensor",
    ops.dtype("x", *_FLOATS),
    ops.same_dtype("x", "bias"),
    ops.shape("bias", "x.shape[-1]"),
)

rotary = ops.kernel_op(
    "bringup::rotary(Tensor x, Tensor cos, Tensor sin) -> Tensor",
    source=_source("rotary"),
    dtypes={"SCALAR": "x"},
    layout="strided",
    outputs=ops.empty("x.shape[0]", "x.shape[2]", "x.shape[1]", "x.shape[3]", dtype="x"),
    checks=(ops.dtype("x", *_FLOATS), ops.same_dtype("x", "cos", "sin")),
)

silu_mul = ops.kernel_op(
    "bringup::silu_mul(Tensor gate, Tensor up) -> Tensor", source=_source("silu_mul"),
    dtypes={"SCALAR": "gate"}, layout="strided", outputs=ops.empty("*gate.shape", dtype="gate"),
    checks=(
        ops.dtype("gate", *_FLOATS), ops.same_dtype("gate", "up"), ops.same_shape("gate", "up"),
    ),
)  # fmt: skip

for _kernel, _backward in (
    (add_layer_norm, _gradients.add_layer_norm),
    (add_layer_norm_sum, _gradients.add_layer_norm_sum),
    (rms_norm, _gradients.rms_norm),
    (rms_norm_eps, _gradients.rms_norm),
    (add_rms_norm, _gradients.add_rms_norm),
    (add_rms_norm_eps, _gradients.add_rms_norm),
    (rotary, _gradients.rotary),
    (silu_mul, _gradients.silu_mul),
    (bias_gelu, _gradients.bias_gelu),
):
    _gradients.register(_kernel, _backward)

_DESCRIPTIONS = {
    add_layer_norm: """LayerNorm over the last dimension of x + residual (Ba et al.: Layer
        Normalization, 2016), in one pass over memory.

        Args:
            x: [..., D] with D of at least 1, float32, float64, bfloat16 or float16.
            residual: as x.
            weight: [D], of the same dtype.
            bias: [D], of the same dtype.
            eps: added to the biased variance.
        """,
    add_layer_norm_sum: """`add_layer_norm`, and x + residual itself, which a model with the norm in
        front of its blocks adds to again.

        Args:
            x, residual, weight, bias, eps: as in `add_layer_norm`.

        Returns:
            The normalized tensor, and the total; both like x.
        """,
    rms_norm: """RMSNorm over the last dimension (Zhang, Sennrich: Root Mean Square Layer
        Normalization, 2019).

        Args:
            x: [..., D] with D of at least 1, float32, float64, bfloat16 or float16.
            weight: [D], of the same dtype; None for ones.
            eps: added to the mean of the squares.
        """,
    add_rms_norm: """`rms_norm` of x + residual, and that sum.

        Args:
            x: [..., D] with D of at least 1, float32, float64, bfloat16 or float16.
            residual: as x.
            weight: [D], of the same dtype.
            eps: added to the mean of the squares.

        Returns:
            The normalized tensor, and the total; both like x.
        """,
    rotary: """Rotary position embedding (Su et al.: RoFormer, 2021), halves of D rotated against
        each other as transformers does: x * cos + (-x2, x1) * sin.

        Args:
            x: [B, H, S, D], float32, float64, bfloat16 or float16, any strides.
            cos: [B or 1, H or 1, S or 1, D], of the same dtype.
            sin: as cos.

        Returns:
            [B, S, H, D].
        """,
    silu_mul: """silu(gate) * up, the middle of a SwiGLU (Shazeer: GLU Variants Improve Transformer,
        2020).

        Args:
            gate: [..., D], float32, float64, bfloat16 or float16. Its rows may lie apart,
                as halves of a projection.
            up: of the same shape and dtype.

        Returns:
            Of the same shape, contiguous.
        """,
    bias_gelu: """The exact GELU (with erf) of x + bias.

        Args:
            x: [..., D], float32, float64, bfloat16 or float16.
            bias: [D], of the same dtype.
        """,
}
for _kernel, _text in _DESCRIPTIONS.items():
    _kernel.__doc__ = f"{_kernel.schema}\n\n{inspect.cleandoc(_text)}"


def names() -> tuple[str, ...]:
    """Return the names of the operators for transformers, which are those of their sources."""
    return (
        "add_layer_norm", "add_layer_norm_sum", "add_rms_norm", "attention", "bias_gelu",
        "mean_pool", "packed_linear", "rms_norm", "rotary", "silu_mul",
    )  # fmt: skip


def build(name: str, dtype: torch.dtype = torch.float32, target: str = "cpu") -> jit.Binary:
    """Return the kernel of a shipped operator, compiled now instead of at its first call.

    Args:
        name: one of `names()`.
        dtype: torch.float32 or torch.float64; torch.bfloat16 and torch.float16 too for all but
            mean_pool and packed_linear.
        target: for which it is compiled, as in `jit.compile`.

    Raises:
        KeyError: another dtype.
        CompileError: the compiler refuses the source.
    """
    scalar = {item: ELEMENT_TYPES[str(item).removeprefix("torch.")] for item in _FLOATS}[dtype]
    packed = name == "packed_linear"
    macros = {"SCALAR": scalar, "WEIGHT": scalar} if packed else {"SCALAR": scalar}
    flags: tuple[str, ...] = UNROLLED if packed else ()
    return jit.compile(_source(name), macros=macros, target=target, flags=flags)
