"""The GEMM family: operators over the templates in `csrc/gemm/`, compiled by dtypes, layouts and
activation when first called for; sizes, strides and scalars are run-time values.

Operands are taken as they lie: any strides, or nz (`_nz.py`). Sums are kept in float32 (float64 for
float64, int32 for int8) and rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from bringup import jit, ops
from bringup.errors import ContractError
from bringup.kernels._nz_layout import BLOCK
from bringup.kernels._sources import UNROLLED

ACTIVATIONS = ("none", "relu", "gelu", "silu")
OUT_DTYPES: Mapping[str, torch.dtype] = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}

_FLOATS = tuple(OUT_DTYPES.values())
_FLOAT16 = 5  # torch.float16 in a schema's text
_MATRICES = {"LAYOUT_A": "a", "LAYOUT_B": "b"}
_ELEMENTS = {"ELEMENT_A": "a", "ELEMENT_B": "b", "ELEMENT_C": "out"}
# The first is what a call gets; the others are for the autotuner: small caches, many threads.
_TILES = (
    {"TILE_M": 96, "TILE_N": 512, "TILE_K": 256},
    {"TILE_M": 48, "TILE_N": 256, "TILE_K": 256},
    {"TILE_M": 192, "TILE_N": 256, "TILE_K": 384},
)


def _template(
    name: str,
    params: str,
    *,
    dtypes: Mapping[str, str] = _ELEMENTS,
    layouts: Mapping[str, Any] = _MATRICES,
    kernel_kind: Literal["cube", "vector"] = "cube",
    **options: Any,
) -> jit.Template:
    return jit.Template(
        Path(__file__).parent / "csrc" / "gemm" / f"{name}.cpp",
        abi="params",
        params=params,
        dtypes=dtypes,
        layouts=layouts,
        kernel_kind=kernel_kind,
        flags=UNROLLED,
        **options,
    )


def _operator(
    signature: str, template: jit.Template, outputs: Any, *checks: ops.InputConstraint
) -> ops.KernelOperator:
    return ops.kernel_op(
        f"bringup::{signature}", source=template, outputs=outputs, checks=checks, kind="device"
    )


def _strides(name: str, rank: int) -> str:
    return ", ".join(f"stride({name},{dim})" for dim in range(rank))


_SIZES = "size(a,0), size(b,1), size(a,1)"
_BATCHED_SIZES = "size(a,0), size(a,1), size(b,2), size(a,2)"
_POINTERS = "ptr(out), ptr(a), ptr(b)"
_MATRIX_STRIDES = f"{_strides('a', 2)}, {_strides('b', 2)}"

_OUT_DTYPE = ops.dtype("out_dtype", *_FLOATS)
_MATRIX_A = (ops.dtype("a", *_FLOATS), ops.shape("a", "a.shape[0]", "a.shape[1]"))
_MATRIX_PAIR = (*_MATRIX_A, ops.same_dtype("a", "b"), ops.shape("b", "a.shape[1]", "b.shape[1]"))
_BATCH_PAIR = (
    ops.dtype("a", *_FLOATS),
    ops.same_dtype("a", "b"),
    ops.shape("a", "a.shape[0]", "a.shape[1]", "a.shape[2]"),
    ops.shape("b", "a.shape[0]", "a.shape[2]", "b.shape[2]"),
)
_MATRIX_OUT = ops.empty("a.shape[0]", "b.shape[1]", dtype="out_dtype")

_basic_matmul = _operator(
    "basic_matmul(Tensor a, Tensor b, ScalarType? out_dtype=None) -> Tensor",
    _template(
        "matmul",
        f"{_POINTERS}, {_SIZES}, ndim(a), size(a,0), size(a,1), {_strides('a', 2)}, "
        f"ndim(b), size(b,0), size(b,1), {_strides('b', 2)}", tiles=_TILES,
    ),
    _MATRIX_OUT, *_MATRIX_PAIR, _OUT_DTYPE,
)  # fmt: skip

_nz_matmul = _operator(
    "nz_matmul(Tensor a, Tensor b, int m, int n, int k, ScalarType? out_dtype=None) -> Tensor",
    _template(
        "matmul",
        f"{_POINTERS}, m, n, k, ndim(a), size(a,0), size(a,1), {_strides('a', 2)}, "
        f"ndim(b), size(b,0), size(b,1), {_strides('b', 2)}",
        layouts={
            "LAYOUT_A": ("a", "row", "column", "strided", "nz"),
            "LAYOUT_B": ("b", "row", "column", "strided", "nz"),
        },
        tiles=_TILES,
    ),
    ops.empty("m", "n", dtype="out_dtype"),
    ops.dtype("a", *_FLOATS),
    ops.same_dtype("a", "b"),
    _OUT_DTYPE,
)

_batched_matmul = _operator(
    "batched_matmul(Tensor a, Tensor b, ScalarType? out_dtype=None) -> Tensor",
    _template(
        "batched_matmul",
        f"{_POINTERS}, {_BATCHED_SIZES}, {_strides('a', 3)}, {_strides('b', 3)}",
        tiles=_TILES,
    ),
    ops.empty("a.shape[0]", "a.shape[1]", "b.shape[2]", dtype="out_dtype"),
    *_BATCH_PAIR,
    _OUT_DTYPE,
)

_matmul_bias_activation = _operator(
    "matmul_bias_activation(Tensor a, Tensor b, Tensor? bias=None, str activation='none', "
    "ScalarType? out_dtype=None) -> Tensor",
    _template(
        "matmul_bias_activation", f"{_POINTERS}, ptr(bias), {_SIZES}, {_MATRIX_STRIDES}",
        dtypes={**_ELEMENTS, "ELEMENT_BIAS": "bias"},
        choices={"ACTIVATION": ("activation", *ACTIVATIONS)}, tiles=_TILES,
    ),
    _MATRIX_OUT, *_MATRIX_PAIR, ops.dtype("bias", *_FLOATS), ops.shape("bias", "b.shape[1]"),
    _OUT_DTYPE,
)  # fmt: skip

_gemm = _operator(
    "gemm(Tensor a, Tensor b, Tensor? c=None, float alpha=1.0, float beta=1.0, "
    "ScalarType? out_dtype=None) -> Tensor",
    _template(
        "gemm", f"{_POINTERS}, ptr(c), {_SIZES}, {_MATRIX_STRIDES}, alpha, beta",
        dtypes={"ELEMENT_A": "a", "ELEMENT_B": "b", "ELEMENT_C": "c", "ELEMENT_OUT": "out"},
        tiles=_TILES,
    ),
    _MATRIX_OUT, *_MATRIX_PAIR, ops.dtype("c", *_FLOATS),
    ops.shape("c", "a.shape[0]", "b.shape[1]"), _OUT_DTYPE,
)  # fmt: skip

_gemv = _operator(
    "gemv(Tensor a, Tensor x, Tensor? y=None, float alpha=1.0, float beta=1.0, "
    "ScalarType? out_dtype=None) -> Tensor",
    _template(
        "gemv",
        f"ptr(out), ptr(a), ptr(x), ptr(y), size(a,0), size(a,1), {_strides('a', 2)}, alpha, beta",
        dtypes={"ELEMENT_A": "a", "ELEMENT_X": "x", "ELEMENT_Y": "y", "ELEMENT_OUT": "out"},
        layouts={"LAYOUT_A": "a"}, kernel_kind="vector",
    ),
    ops.empty("a.shape[0]", dtype="out_dtype"), *_MATRIX_A, ops.same_dtype("a", "x"),
    ops.shape("x", "a.shape[1]"), ops.dtype("y", *_FLOATS), ops.shape("y", "a.shape[0]"),
    _OUT_DTYPE,
)  # fmt: skip

_quant_matmul = _operator(
    "quant_matmul(Tensor a, Tensor b, Tensor scale, Tensor? per_token_scale=None, "
    f"Tensor? bias=None, ScalarType out_dtype={_FLOAT16}) -> Tensor",
    _template(
        "quant_matmul",
        f"{_POINTERS}, ptr(scale), ptr(per_token_scale), ptr(bias), {_SIZES}, {_MATRIX_STRIDES}, "
        "numel(scale)", dtypes={"ELEMENT_A": "a", "ELEMENT_C": "out"}, tiles=_TILES,
    ),
    _MATRIX_OUT, ops.dtype("a", torch.int8, torch.float16, torch.bfloat16, torch.float32),
    ops.dtype("b", torch.int8), ops.shape("a", "a.shape[0]", "a.shape[1]"),
    ops.shape("b", "a.shape[1]", "b.shape[1]"), ops.dtype("scale", torch.float32),
    ops.shape("scale", "scale.shape[0]"), ops.dtype("per_token_scale", torch.float32),
    ops.shape("per_token_scale", "a.shape[0]"), ops.dtype("bias", torch.float32),
    ops.shape("bias", "b.shape[1]"),
    ops.dtype("out_dtype", torch.float16, torch.bfloat16, torch.float32),
)  # fmt: skip

_grouped_matmul = _operator(
    "grouped_matmul(Tensor a, Tensor b, Tensor group_list, ScalarType? out_dtype=None) -> Tensor",
    _template(
        "grouped_matmul",
        f"{_POINTERS}, ptr(group_list), size(b,0), size(a,0), size(b,2), size(a,1), "
        f"{_strides('a', 2)}, {_strides('b', 3)}", tiles=_TILES,
    ),
    ops.empty("a.shape[0]", "b.shape[2]", dtype="out_dtype"), *_MATRIX_A, ops.same_dtype("a", "b"),
    ops.shape("b", "b.shape[0]", "a.shape[1]", "b.shape[2]"), ops.dtype("group_list", torch.int64),
    ops.shape("group_list", "b.shape[0]"), _OUT_DTYPE,
)  # fmt: skip

_grouped_matmul_slice_k = _operator(
    "grouped_matmul_slice_k(Tensor a, Tensor b, Tensor group_list, ScalarType? out_dtype=None) "
    "-> Tensor",
    _template(
        "grouped_matmul_slice_k",
        f"{_POINTERS}, ptr(group_list), size(group_list,0), {_SIZES}, {_MATRIX_STRIDES}",
        tiles=_TILES,
    ),
    ops.empty("group_list.shape[0]", "a.shape[0]", "b.shape[1]", dtype="out_dtype"),
    *_MATRIX_PAIR,
    ops.dtype("group_list", torch.int64),
    ops.shape("group_list", "group_list.shape[0]"),
    _OUT_DTYPE,
)

_BACKWARD_ELEMENTS = {"ELEMENT_A": "a", "ELEMENT_B": "b", "ELEMENT_GRAD": "grad"}
_BACKWARD_LAYOUTS = {**_MATRICES, "LAYOUT_GRAD": "grad"}
_BACKWARD_OUT = (ops.empty_like("a"), ops.empty_like("b"))
_BACKWARD_POINTERS = "ptr(grad_a), ptr(grad_b), ptr(grad), ptr(a), ptr(b)"

_operator(
    "basic_matmul_backward(Tensor grad, Tensor a, Tensor b) -> (Tensor grad_a, Tensor grad_b)",
    _template(
        "matmul_backward",
        f"{_BACKWARD_POINTERS}, {_SIZES}, {_strides('grad', 2)}, {_MATRIX_STRIDES}",
        dtypes=_BACKWARD_ELEMENTS, layouts=_BACKWARD_LAYOUTS, tiles=_TILES,
    ),
    _BACKWARD_OUT, *_MATRIX_PAIR, ops.dtype("grad", *_FLOATS),
    ops.shape("grad", "a.shape[0]", "b.shape[1]"),
)  # fmt: skip
_basic_matmul.register_backward("bringup::basic_matmul_backward", save=("a", "b"))

_operator(
    "batched_matmul_backward(Tensor grad, Tensor a, Tensor b) -> (Tensor grad_a, Tensor grad_b)",
    _template(
        "matmul_backward",
        f"{_BACKWARD_POINTERS}, size(a,1), size(b,2), size(a,2), "
        "stride(grad,1), stride(grad,2), stride(a,1), stride(a,2), stride(b,1), stride(b,2), "
        "size(a,0), stride(grad,0), stride(a,0), stride(b,0)", dtypes=_BACKWARD_ELEMENTS,
        layouts=_BACKWARD_LAYOUTS, macros={"BATCHED": 1}, tiles=_TILES,
    ),
    _BACKWARD_OUT, *_BATCH_PAIR, ops.dtype("grad", *_FLOATS),
    ops.shape("grad", "a.shape[0]", "a.shape[1]", "b.shape[2]"),
)  # fmt: skip
_batched_matmul.register_backward("bringup::batched_matmul_backward", save=("a", "b"))


def _out_dtype(operator: str, given: str | torch.dtype | None) -> torch.dtype | None:
    """Return the dtype that a caller named. Raises `ValueError` listing the allowed ones."""
    if given is None:
        return None
    dtype = OUT_DTYPES.get(given) if isinstance(given, str) else given
    if dtype not in _FLOATS:
        raise ValueError(
            f"{operator}: out_dtype={given!r}: expected one of {', '.join(OUT_DTYPES)}, as a name "
            "or a torch.dtype, or None for the dtype of the first operand"
        )
    return dtype


def basic_matmul(
    a: torch.Tensor, b: torch.Tensor, out_dtype: str | torch.dtype | None = None
) -> torch.Tensor:
    """Return a [m, k] times b [k, n], as [m, n]; `torch.ops.bringup.basic_matmul`.

    float16, bfloat16, float32 or float64, both the same, any strides. Has a backward.

    Args:
        a: the left operand.
        b: the right operand.
        out_dtype: of the result, as "float16" or torch.float16; by default that of `a`.

    Raises:
        ValueError: out_dtype is not one of float16, bfloat16, float32 and float64.
        ContractError: dtypes or shapes do not fit.
    """
    return _basic_matmul(a, b, _out_dtype("basic_matmul", out_dtype))


def batched_matmul(
    a: torch.Tensor, b: torch.Tensor, out_dtype: str | torch.dtype | None = None
) -> torch.Tensor:
    """Return a [items, m, k] times b [items, k, n], as [items, m, n]; otherwise as `basic_matmul`.

    An operand that is the same for all items may be expanded: it is not copied.

    Args:
        a: [items, m, k], float16, bfloat16, float32 or float64, any strides.
        b: [items, k, n], of the same dtype.
        out_dtype: as in `basic_matmul`, and so are the errors.
    """
    return _batched_matmul(a, b, _out_dtype("batched_matmul", out_dtype))


def nz_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    m: int | None = None,
    n: int | None = None,
    out_dtype: str | torch.dtype | None = None,
) -> torch.Tensor:
    """Return `basic_matmul` where one operand, or both, are in the nz layout of `to_nz`.

    Args:
        a: [m, k], or nz [ceil(k / 16), ceil(m / 16), 16, 16].
        b: [k, n], or nz [ceil(n / 16), ceil(k / 16), 16, 16].
        m: rows of a matrix `a` that is nz; by default all that its blocks hold.
        n: columns of a matrix `b` that is nz; by default all that its blocks hold.
        out_dtype: as in `basic_matmul`, and so are the errors.

    Raises:
        KernelError: the sizes of nz operands do not fit.

    Examples:
        >>> from bringup import kernels
        >>> a, b = torch.ones(2, 3), torch.ones(3, 4)
        >>> torch.equal(kernels.nz_matmul(a, kernels.to_nz(b), n=4), a @ b)
        True
    """
    rows, depth = _matrix_sizes("a", a)
    right_depth, columns = _matrix_sizes("b", b)
    return _nz_matmul(
        a if a.dim() == 2 else a.contiguous(),
        b if b.dim() == 2 else b.contiguous(),
        rows if m is None else m,
        columns if n is None else n,
        depth if a.dim() == 2 else right_depth,
        _out_dtype("nz_matmul", out_dtype),
    )


def _matrix_sizes(name: str, operand: torch.Tensor) -> tuple[int, int]:
    """Return rows and columns of a matrix, or those that its nz blocks hold."""
    if operand.dim() == 2:
        return operand.shape[0], operand.shape[1]
    if operand.dim() == 4:
        return operand.shape[1] * BLOCK, operand.shape[0] * BLOCK
    raise ContractError(
        f"nz_matmul: {name} must be a matrix of 2 dimensions, or nz of 4 (see to_nz), "
        f"got shape {list(operand.shape)}"
    )


def matmul_bias_activation(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str = "none",
    out_dtype: str | torch.dtype | None = None,
) -> torch.Tensor:
    """Return activation(a [m, k] times b [k, n] + bias [n]), computed and rounded once.

    Args:
        a: the left operand.
        b: the right operand, of the same dtype.
        bias: None, or of any of the dtypes.
        activation: "none", "relu", "gelu" (the exact one) or "silu".
        out_dtype: as in `basic_matmul`, and so are the errors.

    Raises:
        ContractError: another activation.

    Examples:
        >>> from bringup import kernels
        >>> a, b, bias = torch.ones(2, 3), -torch.ones(3, 4), torch.ones(4)
        >>> kernels.matmul_bias_activation(a, b, bias, "relu").sum()
        tensor(0.)
    """
    return _matmul_bias_activation(
        a, b, bias, activation, _out_dtype("matmul_bias_activation", out_dtype)
    )


def gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    out_dtype: str | torch.dtype | None = None,
) -> torch.Tensor:
    """Return alpha * a [m, k] times b [k, n] + beta * c [m, n], as BLAS has it.

    Args:
        a: the left operand, float16, bfloat16, float32 or float64.
        b: the right operand, of the same dtype.
        c: [m, n], or None; not read where beta is 0.
        alpha: a run-time value: another one compiles nothing.
        beta: the same.
        out_dtype: as in `basic_matmul`, and so are the errors.

    Examples:
        >>> from bringup import kernels
        >>> a, b = torch.ones(2, 3), torch.ones(3, 2)
        >>> torch.equal(kernels.gemm(a, b, torch.ones(2, 2), alpha=2.0), 2 * a @ b + 1)
        True
    """
    return _gemm(a, b, c, alpha, beta, _out_dtype("gemm", out_dtype))


def gemv(
    a: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    out_dtype: str | torch.dtype | None = None,
) -> torch.Tensor:
    """Return alpha * a [m, k] times x [k] + beta * y [m], as BLAS has it.

    Args:
        a: the matrix, float16, bfloat16, float32 or float64.
        x: of the same dtype.
        y: [m], or None; not read where beta is 0.
        alpha: a run-time value: another one compiles nothing.
        beta: the same.
        out_dtype: as in `basic_matmul`, and so are the errors.
    """
    return _gemv(a, x, y, alpha, beta, _out_dtype("gemv", out_dtype))


def quant_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    scale: torch.Tensor,
    per_token_scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: str | torch.dtype = torch.float16,
) -> torch.Tensor:
    """Return a [m, k] times b [k, n] of int8, times scale, times per_token_scale, plus bias.

    Args:
        a: int8 (the sums are exact), or float16, bfloat16 or float32 (weight-only, w8a16).
        b: int8.
        scale: float32, one for the tensor [1] or one for each channel [n].
        per_token_scale: None, or float32 [m].
        bias: None, or float32 [n].
        out_dtype: float16, bfloat16 or float32, as a name or a torch.dtype; errors besides these
            are as of `basic_matmul`.

    Raises:
        ContractError: out_dtype is float64.
        KernelError: scale is neither [1] nor [n]; or a is int8 and k beyond 131071, where sums may
            not fit into int32.
    """
    return _quant_matmul(a, b, scale, per_token_scale, bias, _out_dtype("quant_matmul", out_dtype))


def grouped_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    group_list: torch.Tensor,
    out_dtype: str | torch.dtype | None = None,
) -> torch.Tensor:
    """Return groups of rows of a [m, k], each times its matrix of b [groups, k, n] -> [m, n].

    Rows behind the last group are zeros.

    Args:
        a: [m, k], float16, bfloat16, float32 or float64.
        b: [groups, k, n], of the same dtype.
        group_list: int64 [groups], where each group ends, as cumulative sums up to m; the kernel
            reads it on the device.
        out_dtype: as in `basic_matmul`, and so are the errors.
        KernelError: group_list does not rise from 0 to at most m.

    Examples:
        >>> from bringup import kernels
        >>> a, b = torch.ones(5, 3), torch.ones(2, 3, 4)
        >>> kernels.grouped_matmul(a, b, torch.tensor([2, 5])).shape  # rows 0 to 2, then 2 to 5
        torch.Size([5, 4])
    """
    return _grouped_matmul(a, b, group_list, _out_dtype("grouped_matmul", out_dtype))


def grouped_matmul_slice_k(
    a: torch.Tensor,
    b: torch.Tensor,
    group_list: torch.Tensor,
    out_dtype: str | torch.dtype | None = None,
) -> torch.Tensor:
    """Return the columns of a [m, k] and the rows of b [k, n] in groups: the product of each ->
    [groups, m, n], zeros for an empty one.

    Args:
        a: [m, k], float16, bfloat16, float32 or float64.
        b: [k, n], of the same dtype.
        group_list: int64 [groups], where each group ends, as cumulative sums up to k; the kernel
            reads it on the device.
        out_dtype: as in `basic_matmul`, and so are the errors.
        KernelError: group_list does not rise from 0 to at most k.
    """
    return _grouped_matmul_slice_k(
        a, b, group_list, _out_dtype("grouped_matmul_slice_k", out_dtype)
    )
