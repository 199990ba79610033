"""The GEMM family: operators over the templates in `csrc/gemm/`, compiled by dtypes, layouts and
activation when first called for; sizes, strides and scalars are run-time values.

Operands are taken as they lie: any strides, or nz (`_nz.py`). Sums are kept in float32 (float64 for
float64, int32 for int8) and rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

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

FLOATS = tuple(OUT_DTYPES.values())
_FLOAT16 = 5  # torch.float16 in a schema's text
_MATRICES = {"LAYOUT_A": "a", "LAYOUT_B": "b"}
# The first is what a call gets; the others are for the autotuner: small caches, many threads.
_TILES = (
    {"TILE_M": 96, "TILE_N": 512, "TILE_K": 256},
    {"TILE_M": 48, "TILE_N": 256, "TILE_K": 256},
    {"TILE_M": 192, "TILE_N": 256, "TILE_K": 384},
)
CSRC = Path(__file__).parent / "csrc" / "gemm"
_SOURCE: Mapping[str, Any] = {"kernel_kind": "cube", "flags": UNROLLED, "tiles": _TILES}
_ROLES = ("A", "B", "OUT", "GROUP_LIST", "K", "SCALE_A", "SCALE_B", "BLOCKS", "OUT_DTYPE")
SLICES = {"rows": 1, "depth": 2}  # GROUPS of csrc/gemm/product.cpp
_LIKE_A = ("a.shape[0]", "a.shape[1]")
MATRIX_OUT = ("a.shape[0]", "b.shape[1]")


def product(
    signature: str,
    sizes: Sequence[str],
    *checks: ops.InputConstraint,
    epilogue: str = "acc",
    operands: Mapping[str, float] = MappingProxyType({}),
    along_rows: str = "",
    scalars: Sequence[str] = (),
    slices: str = "",
    results: Sequence[torch.dtype] = FLOATS,
    **options: Any,
) -> ops.KernelOperator:
    """Define an operator on `csrc/gemm/product.cpp`, `bringup::signature`.

    Args:
        signature: name, arguments and result; an operand `a` times an operand `b`.
        sizes: of the result.
        checks: the contract beside that of the result's dtype.
        epilogue: of the sums `acc` and of `x_name`, in C++.
        operands: the tensors in it, each with what it is where it is None.
        along_rows: the one of them whose one dimension is that of the result's rows.
        scalars: the numbers in it.
        slices: "rows" or "depth" where `group_list` ends slices of that.
        results: its dtypes.
        options: more of the template: layouts, choices, dtypes, macros, buckets.
    """
    schema = f"bringup::{signature} -> Tensor"
    names = [argument.name for argument in torch._C.parse_schema(schema).arguments] + ["out"]
    tensors = [
        f"X({name}, {names.index(name)}, ELEMENT_{name.upper()}, {int(name == along_rows)}, {none})"
        for name, none in operands.items()
    ]
    numbers = [f"X({name}, {names.index(name)})" for name in scalars]
    roles: dict[str, Any] = {
        f"ARG_{r}": names.index(r.lower()) if r.lower() in names else -1 for r in _ROLES
    }
    plain = {f"{what}_{side}": none for what, none in _PLAIN.items() for side in "AB"}
    texts = {"EPILOGUE": epilogue, "OPERANDS": " ".join(tensors), "SCALARS": " ".join(numbers)}
    macros = {**roles, **plain, "GROUPS": SLICES.get(slices, 0)}
    macros |= {name: text for name, text in texts.items() if text} | options.pop("macros", {})
    chosen = {**options.get("buckets", {}), **options.get("choices", {})}
    dtypes = {"ELEMENT_A": "a", "ELEMENT_B": "b", "ELEMENT_OUT": "out"}
    dtypes |= {f"ELEMENT_{name.upper()}": name for name in operands} | options.pop("dtypes", {})
    return ops.kernel_op(
        schema,
        source=jit.Template(
            CSRC / "product.cpp",
            abi="args",
            kind="device",
            macros={k: v for k, v in macros.items() if k not in {**chosen, **dtypes}},
            dtypes=dtypes,
            **{"layouts": _MATRICES, **_SOURCE, **options},
        ),
        outputs=ops.empty(*sizes, dtype="out_dtype"),
        strided=[*operands, *(name for name in ("scale_a", "scale_b") if name in names)],
        checks=[
            *checks,
            *(ops.dtype(name, *FLOATS) for name in operands),
            ops.dtype("out_dtype", *results),
        ],
    )


# What an operator is without scales and formats.
_PLAIN = {"SCALE": "void", "DEPTH": 0, "FORMAT": "plain"}
_MATRIX_A = (ops.dtype("a", *FLOATS), ops.shape("a", *_LIKE_A))
MATRIX_SHAPES = (ops.shape("a", *_LIKE_A), ops.shape("b", "a.shape[1]", "b.shape[1]"))
_FLOAT_PAIR = (ops.dtype("a", *FLOATS), ops.same_dtype("a", "b"))
_MATRIX_PAIR = (*_FLOAT_PAIR, *MATRIX_SHAPES)
BATCH_OUT = ("a.shape[0]", "a.shape[1]", "b.shape[2]")
BATCH_SHAPES = (
    ops.shape("a", "a.shape[0]", "a.shape[1]", "a.shape[2]"),
    ops.shape("b", "a.shape[0]", "a.shape[2]", "b.shape[2]"),
)
_BATCH_PAIR = (*_FLOAT_PAIR, *BATCH_SHAPES)
_GROUP_LIST = ops.dtype("group_list", torch.int64, torch.int32)
GROUPED_OUT = ("a.shape[0]", "b.shape[2]")
GROUPED_SHAPES = (
    ops.shape("a", *_LIKE_A),
    ops.shape("b", "b.shape[0]", "a.shape[1]", "b.shape[2]"),
    ops.shape("group_list", "b.shape[0]"),
    _GROUP_LIST,
)
SLICED_OUT = ("group_list.shape[0]", "a.shape[0]", "b.shape[1]")
SLICED_SHAPES = (*MATRIX_SHAPES, ops.shape("group_list", "group_list.shape[0]"), _GROUP_LIST)
_OUT = "ScalarType? out_dtype=None"

_basic_matmul = product(f"basic_matmul(Tensor a, Tensor b, {_OUT})", MATRIX_OUT, *_MATRIX_PAIR)

_nz_matmul = product(
    f"nz_matmul(Tensor a, Tensor b, int m, int n, int k, {_OUT})",
    ("m", "n"),
    ops.dtype("a", *FLOATS),
    ops.same_dtype("a", "b"),
    layouts={m: (n, "row", "column", "strided", "nz") for m, n in _MATRICES.items()},
)

_batched_matmul = product(f"batched_matmul(Tensor a, Tensor b, {_OUT})", BATCH_OUT, *_BATCH_PAIR)

_matmul_bias_activation = product(
    f"matmul_bias_activation(Tensor a, Tensor b, Tensor? bias=None, str activation='none', {_OUT})",
    MATRIX_OUT,
    *_MATRIX_PAIR,
    ops.shape("bias", "b.shape[1]"),
    epilogue="ACTIVATION(acc + x_bias)",
    operands={"bias": -0.0},  # which changes no sum, not even the sign of a zero
    choices={"ACTIVATION": ("activation", *ACTIVATIONS)},
)

_gemm = product(
    f"gemm(Tensor a, Tensor b, Tensor? c=None, float alpha=1.0, float beta=1.0, {_OUT})",
    MATRIX_OUT,
    *_MATRIX_PAIR,
    ops.shape("c", *MATRIX_OUT),
    epilogue="x_beta == 0 ? x_alpha * acc : multiply_add(x_beta, x_c, x_alpha * acc)",
    operands={"c": 0.0},
    scalars=("alpha", "beta"),
)

_gemv = ops.kernel_op(
    "bringup::gemv(Tensor a, Tensor x, Tensor? y=None, float alpha=1.0, float beta=1.0, "
    f"{_OUT}) -> Tensor",
    source=jit.Template(
        CSRC / "gemv.cpp",
        abi="params",
        params="ptr(out), ptr(a), ptr(x), ptr(y), size(a,0), size(a,1), stride(a,0), stride(a,1), "
        "alpha, beta",
        kind="device",
        dtypes={"ELEMENT_A": "a", "ELEMENT_X": "x", "ELEMENT_Y": "y", "ELEMENT_OUT": "out"},
        layouts={"LAYOUT_A": "a"},
        kernel_kind="vector",
        flags=UNROLLED,
    ),
    outputs=ops.empty("a.shape[0]", dtype="out_dtype"),
    checks=[
        *_MATRIX_A, ops.same_dtype("a", "x"), ops.shape("x", "a.shape[1]"),
        ops.dtype("y", *FLOATS), ops.shape("y", "a.shape[0]"), ops.dtype("out_dtype", *FLOATS),
    ],
)  # fmt: skip

_quant_matmul = product(
    "quant_matmul(Tensor a, Tensor b, Tensor scale, Tensor? per_token_scale=None, "
    f"Tensor? bias=None, ScalarType out_dtype={_FLOAT16})",
    MATRIX_OUT,
    ops.dtype("a", torch.int8, torch.float16, torch.bfloat16, torch.float32),
    ops.dtype("b", torch.int8),
    ops.shape("a", *_LIKE_A),
    ops.shape("b", "a.shape[1]", "b.shape[1]"),
    ops.shape("scale", "scale.shape[0]"),
    ops.shape("per_token_scale", "a.shape[0]"),
    ops.shape("bias", "b.shape[1]"),
    results=(torch.float16, torch.bfloat16, torch.float32),
    epilogue="acc * x_scale * x_per_token_scale + x_bias",
    operands={"scale": 1.0, "per_token_scale": 1.0, "bias": -0.0},
    along_rows="per_token_scale",
)

_grouped_matmul = product(
    f"grouped_matmul(Tensor a, Tensor b, Tensor group_list, {_OUT})",
    GROUPED_OUT, *GROUPED_SHAPES, *_FLOAT_PAIR, slices="rows",
)  # fmt: skip

_grouped_matmul_slice_k = product(
    f"grouped_matmul_slice_k(Tensor a, Tensor b, Tensor group_list, {_OUT})",
    SLICED_OUT, *SLICED_SHAPES, *_FLOAT_PAIR, slices="depth",
)  # fmt: skip

for _operator, _pair, _sizes in (
    (_basic_matmul, _MATRIX_PAIR, MATRIX_OUT), (_batched_matmul, _BATCH_PAIR, BATCH_OUT),
):  # fmt: skip
    _backward = f"{_operator.qualified_name}_backward"
    ops.kernel_op(
        f"{_backward}(Tensor grad, Tensor a, Tensor b) -> (Tensor grad_a, Tensor grad_b)",
        source=jit.Template(
            CSRC / "matmul_backward.cpp",
            abi="args",
            kind="device",
            dtypes={"ELEMENT_A": "a", "ELEMENT_B": "b", "ELEMENT_GRAD": "grad"},
            layouts={**_MATRICES, "LAYOUT_GRAD": "grad"},
            **_SOURCE,
        ),
        outputs=(ops.empty_like("a"), ops.empty_like("b")),
        checks=[*_pair, ops.dtype("grad", *FLOATS), ops.shape("grad", *_sizes)],
    )
    _operator.register_backward(_backward, save=("a", "b"))


def result_dtype(operator: str, given: str | torch.dtype | None) -> torch.dtype | None:
    """Return the dtype that a caller named. Raises `ValueError` listing the allowed ones."""
    if given is None:
        return None
    dtype = OUT_DTYPES.get(given) if isinstance(given, str) else given
    if dtype not in FLOATS:
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
    return _basic_matmul(a, b, result_dtype("basic_matmul", out_dtype))


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
    return _batched_matmul(a, b, result_dtype("batched_matmul", out_dtype))


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
        result_dtype("nz_matmul", out_dtype),
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
        a, b, bias, activation, result_dtype("matmul_bias_activation", out_dtype)
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
    return _gemm(a, b, c, alpha, beta, result_dtype("gemm", out_dtype))


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
    return _gemv(a, x, y, alpha, beta, result_dtype("gemv", out_dtype))


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
    return _quant_matmul(
        a, b, scale, per_token_scale, bias, result_dtype("quant_matmul", out_dtype)
    )


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
    return _grouped_matmul(a, b, group_list, result_dtype("grouped_matmul", out_dtype))


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
        a, b, group_list, result_dtype("grouped_matmul_slice_k", out_dtype)
    )
