"""The operators that bringup ships: written in C++ against `kernel.h`, compiled by `jit`,
registered by `ops`; in `torch.ops.bringup` from the first use of one of a group, or after `load()`.

*For transformers*: `add_layer_norm`, `add_layer_norm_sum`, `rms_norm`, `add_rms_norm`, `rotary`,
`silu_mul`, `bias_gelu`, `attention` (sequences of different length, `actual_seq_lengths: int[]`),
`mean_pool`, and `packed_linear` with `pack_weight` for linear layers. They take float32,
float64, bfloat16 and float16 (`mean_pool` and `packed_linear` the first two) and have a backward,
except `attention`, `mean_pool` and `packed_linear`. `build(name)` compiles one of their `names()`
ahead of its first call, `register_attention()` offers `attention` to transformers' models,
`use_lengths(model)` makes one take lengths instead of a mask, `register_patterns()` is the pass
library (`kernels.patterns`).

*The GEMM family*, on one template: `basic_matmul` and `batched_matmul` (with a backward),
`matmul_bias_activation`, `gemm`, `gemv`, `quant_matmul`, `grouped_matmul`,
`grouped_matmul_slice_k`, and `nz_matmul` with `to_nz` and `from_nz`; float16, bfloat16, float32,
float64, operands in any layout. Quantised: `scaled_matmul` and `dequantize`, of int8, floats of 8
and 4 bits, scales for any block. `fused_matmul(text)`: a product with an epilogue of one's own.

*torch_npu's attention*: `bringup.kernels.npu`, in `torch.ops.npu` and `torch.ops.atb`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from bringup._lazy import lazily
from bringup.kernels._transformers import register_attention

if TYPE_CHECKING:
    from bringup.kernels._attention import attention, mean_pool
    from bringup.kernels._lengths import lengths_of, use_lengths
    from bringup.kernels._linear import (
        pack_weight,
        pack_weight_int8,
        packed_linear,
        packed_linear_int8,
        packed_linear_w8a8,
    )
    from bringup.kernels._linear_mkl import mkl_linear, pack_weight_mkl
    from bringup.kernels._matmul import (
        basic_matmul,
        batched_matmul,
        gemm,
        gemv,
        grouped_matmul,
        grouped_matmul_slice_k,
        matmul_bias_activation,
        nz_matmul,
        quant_matmul,
    )
    from bringup.kernels._nz_layout import from_nz, to_nz
    from bringup.kernels._operators import (
        add_layer_norm,
        add_layer_norm_sum,
        add_rms_norm,
        bias_gelu,
        build,
        names,
        rms_norm,
        rotary,
        silu_mul,
    )
    from bringup.kernels._scaled import dequantize, fused_matmul, scaled_matmul
    from bringup.kernels.patterns import register_patterns

__all__ = [
    "add_layer_norm", "add_layer_norm_sum", "add_rms_norm", "attention", "basic_matmul",
    "batched_matmul", "bias_gelu", "build", "dequantize", "from_nz", "fused_matmul", "gemm", "gemv",
    "grouped_matmul", "grouped_matmul_slice_k", "lengths_of", "load", "matmul_bias_activation",
    "mean_pool", "mkl_linear", "names", "nz_matmul", "pack_weight", "pack_weight_int8",
    "pack_weight_mkl", "packed_linear", "packed_linear_int8", "packed_linear_w8a8", "quant_matmul",
    "register_attention", "register_patterns", "rms_norm", "rotary", "scaled_matmul", "silu_mul",
    "to_nz", "use_lengths",
]  # fmt: skip

_OPERATORS = {
    "_attention": "attention mean_pool",
    "_linear": ("pack_weight pack_weight_int8 packed_linear packed_linear_int8 packed_linear_w8a8"),
    "_linear_mkl": "mkl_linear pack_weight_mkl",
    "_matmul": (
        "basic_matmul batched_matmul gemm gemv grouped_matmul grouped_matmul_slice_k "
        "matmul_bias_activation nz_matmul quant_matmul"
    ),
    "_nz_layout": "from_nz to_nz",
    "_scaled": "dequantize fused_matmul scaled_matmul",
    "_operators": (
        "add_layer_norm add_layer_norm_sum add_rms_norm bias_gelu build names rms_norm rotary "
        "silu_mul"
    ),
}

if not TYPE_CHECKING:
    __getattr__ = lazily(
        __name__,
        {**_OPERATORS, "_lengths": "lengths_of use_lengths", "patterns": "register_patterns"},
    )


def load() -> None:
    """Register all shipped operators in `torch.ops.bringup`, and those of `bringup.kernels.npu` in
    `torch.ops.npu` and `torch.ops.atb`. Nothing is compiled yet; calling it again is free.
    """
    for module in (*_OPERATORS, "npu"):
        importlib.import_module(f"bringup.kernels.{module}")
