"""The shipped operators: for each its schema, its C++ source under `csrc/`, the shape of its output
and its input contract. Importing this module registers them with torch; the kernels are compiled
when they are first needed.

Their mathematics and sources are described in the C++ files.
"""

from __future__ import annotations

from pathlib import Path

import torch

from bringup import jit, ops
from bringup.kernels._flags import CONTRACTED

__all__ = [
    "PANEL",
    "add_layer_norm",
    "add_layer_norm_sum",
    "add_rms_norm",
    "attention",
    "bias_gelu",
    "build",
    "mean_pool",
    "names",
    "pack_weight",
    "packed_linear",
    "rms_norm",
    "rotary",
    "silu_mul",
]

PANEL = 16  # columns in a panel of packed_linear's weight: kPanel in panel_gemm.h

_FLOATS = (torch.float32, torch.float64)


def _source(name: str) -> jit.Source:
    return jit.Source(Path(__file__).parent / "csrc" / f"{name}.cpp", kind="device")


_NORM_CHECKS = (
    ops.dtype("x", *_FLOATS),
    ops.same_dtype("x", "residual", "weight"),
    ops.same_shape("x", "residual"),
    ops.shape("weight", "x.shape[-1]"),
)

_LAYER_NORM_CHECKS = (
    *_NORM_CHECKS,
    ops.same_dtype("x", "bias"),
    ops.shape("bias", "x.shape[-1]"),
)

add_layer_norm = ops.kernel_op(
    "bringup::add_layer_norm(Tensor x, Tensor residual, Tensor weight, Tensor bias, "
    "float eps=1e-05) -> Tensor",
    source=_source("add_layer_norm"),
    dtypes={"SCALAR": "x"},
    flags=CONTRACTED,
    outputs=ops.empty_like("x"),
    checks=_LAYER_NORM_CHECKS,
)

add_layer_norm_sum = ops.kernel_op(
    "bringup::add_layer_norm_sum(Tensor x, Tensor residual, Tensor weight, Tensor bias, "
    "float eps=1e-05) -> (Tensor normalized, Tensor total)",
    source=_source("add_layer_norm_sum"),
    dtypes={"SCALAR": "x"},
    flags=CONTRACTED,
    outputs=(ops.empty_like("x"), ops.empty_like("x")),
    checks=_LAYER_NORM_CHECKS,
)

rms_norm = ops.kernel_op(
    "bringup::rms_norm(Tensor x, Tensor? weight=None, float eps=1e-06) -> Tensor",
    source=_source("rms_norm"),
    dtypes={"SCALAR": "x"},
    flags=CONTRACTED,
    outputs=ops.empty_like("x"),
    checks=(
        ops.dtype("x", *_FLOATS),
        ops.same_dtype("x", "weight"),
        ops.shape("weight", "x.shape[-1]"),
    ),
)

rms_norm_eps = ops.kernel_op(
    "bringup::rms_norm_eps(Tensor x, Tensor? weight, Tensor eps) -> Tensor",
    source=_source("rms_norm"),
    macros={"EPS_IS_TENSOR": "1"},
    dtypes={"SCALAR": "x"},
    flags=CONTRACTED,
    outputs=ops.empty_like("x"),
    checks=(
        ops.dtype("x", *_FLOATS),
        ops.same_dtype("x", "weight", "eps"),
        ops.shape("weight", "x.shape[-1]"),
        ops.shape("eps"),
    ),
)

add_rms_norm_eps = ops.kernel_op(
    "bringup::add_rms_norm_eps(Tensor x, Tensor residual, Tensor weight, Tensor eps) -> "
    "(Tensor normalized, Tensor total)",
    source=_source("add_rms_norm"),
    macros={"EPS_IS_TENSOR": "1"},
    dtypes={"SCALAR": "x"},
    flags=CONTRACTED,
    outputs=(ops.empty_like("x"), ops.empty_like("x")),
    checks=(*_NORM_CHECKS, ops.same_dtype("x", "eps"), ops.shape("eps")),
)

add_rms_norm = ops.kernel_op(
    "bringup::add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps=1e-06) -> "
    "(Tensor normalized, Tensor total)",
    source=_source("add_rms_norm"),
    dtypes={"SCALAR": "x"},
    flags=CONTRACTED,
    outputs=(ops.empty_like("x"), ops.empty_like("x")),
    checks=_NORM_CHECKS,
)

rotary = ops.kernel_op(
    "bringup::rotary(Tensor x, Tensor cos, Tensor sin) -> Tensor",
    source=_source("rotary"),
    dtypes={"SCALAR": "x"},
    flags=CONTRACTED,
    layout="strided",
    outputs=ops.empty("x.shape[0]", "x.shape[2]", "x.shape[1]", "x.shape[3]", dtype="x"),
    checks=(ops.dtype("x", *_FLOATS), ops.same_dtype("x", "cos", "sin")),
)

silu_mul = ops.kernel_op(
    "bringup::silu_mul(Tensor gate, Tensor up) -> Tensor",
    source=_source("silu_mul"),
    dtypes={"SCALAR": "gate"},
    flags=CONTRACTED,
    layout="strided",
    outputs=ops.empty("*gate.shape", dtype="gate"),
    checks=(
        ops.dtype("gate", *_FLOATS),
        ops.same_dtype("gate", "up"),
        ops.same_shape("gate", "up"),
    ),
)

bias_gelu = ops.kernel_op(
    "bringup::bias_gelu(Tensor x, Tensor bias) -> Tensor",
    source=_source("bias_gelu"),
    dtypes={"SCALAR": "x"},
    flags=CONTRACTED,
    outputs=ops.empty_like("x"),
    checks=(
        ops.dtype("x", *_FLOATS),
        ops.same_dtype("x", "bias"),
        ops.shape("bias", "x.shape[-1]"),
    ),
)

attention = ops.kernel_op(
    "bringup::attention(Tensor q, Tensor k, Tensor v, int[] actual_seq_lengths, float scale) "
    "-> Tensor",
    source=_source("attention"),
    dtypes={"SCALAR": "q"},
    flags=CONTRACTED,
    layout="strided",
    outputs=ops.empty("q.shape[0]", "q.shape[2]", "q.shape[1]", "q.shape[3]", dtype="q"),
    checks=(
        ops.dtype("q", *_FLOATS),
        ops.same_dtype("q", "k", "v"),
        ops.same_shape("q", "k", "v"),
    ),
)

mean_pool = ops.kernel_op(
    "bringup::mean_pool(Tensor x, int[] actual_seq_lengths, bool normalize=False) -> Tensor",
    source=_source("mean_pool"),
    dtypes={"SCALAR": "x"},
    flags=CONTRACTED,
    outputs=ops.empty("x.shape[0]", "x.shape[2]", dtype="x"),
    checks=(ops.dtype("x", *_FLOATS),),
)

packed_linear = ops.kernel_op(
    "bringup::packed_linear(Tensor x, Tensor panels, Tensor? bias=None) -> Tensor",
    source=_source("packed_linear"),
    dtypes={"SCALAR": "x"},
    flags=CONTRACTED,
    outputs=ops.empty("x.shape[0]", f"panels.shape[0] * {PANEL}", dtype="x"),
    checks=(
        ops.dtype("x", *_FLOATS),
        ops.same_dtype("x", "panels", "bias"),
        ops.shape("panels", "panels.shape[0]", "x.shape[1]", str(PANEL)),
        ops.shape("x", "x.shape[0]", "panels.shape[1]"),
        ops.shape("bias", f"panels.shape[0] * {PANEL}"),
    ),
)


def names() -> tuple[str, ...]:
    """The names of this module's operators, which are those of their sources."""
    return (
        "add_layer_norm",
        "add_layer_norm_sum",
        "add_rms_norm",
        "attention",
        "bias_gelu",
        "mean_pool",
        "packed_linear",
        "rms_norm",
        "rotary",
        "silu_mul",
    )


def build(name: str, dtype: torch.dtype = torch.float32, target: str = "cpu") -> jit.Binary:
    """Compile the kernel of a shipped operator now instead of at its first call. Raises
    `CompileError`.
    """
    scalar = {torch.float32: "float", torch.float64: "double"}[dtype]
    return jit.compile(_source(name), macros={"SCALAR": scalar}, target=target, flags=CONTRACTED)


def pack_weight(weight: torch.Tensor) -> torch.Tensor:
    """A linear layer's weight [n, k] as `packed_linear` takes it: panels [n / 16, k, 16],
    contiguous.

    Raises `ValueError` when the weight is not a matrix or n is not a multiple of 16.
    """
    if weight.dim() != 2 or weight.shape[0] % PANEL:
        raise ValueError(
            f"pack_weight: expected a weight [n, k] with n a multiple of {PANEL}, "
            f"got {list(weight.shape)}; leave such a layer to torch.nn.functional.linear"
        )
    return weight.reshape(-1, PANEL, weight.shape[1]).transpose(1, 2).contiguous()
