"""Products of quantised operands, dequantisation, and products with an epilogue of one's own, on
the template of `_matmul.py`.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from typing import Literal

import torch
from torch import Tensor

from bringup import jit, ops
from bringup.errors import ContractError
from bringup.kernels import _matmul as family
from bringup.kernels._sources import UNROLLED

_FLOAT32 = 6  # torch.float32 in a schema's text
# Floats of 8 bits go to kernels as bytes and the name of their format.
_FORMATS = {torch.float8_e4m3fn: "float8_e4m3fn", torch.float8_e5m2: "float8_e5m2"}
_WORDS = ("plain", *_FORMATS.values())
_PACKED = ("int4", "float4_e2m1fn")
_SCALES = (torch.float32, torch.float16, torch.bfloat16, torch.uint8)
_ELEMENTS = (torch.int8, torch.uint8, torch.float16, torch.bfloat16, torch.float32)
_RESULTS = (torch.float16, torch.bfloat16, torch.float32)
_MX_GROUP = 32  # elements of a scale of e8m0 (Open Compute Project: Microscaling Formats, 2023)

_FORMS = {
    "": ("scaled_matmul", family.MATRIX_OUT, family.MATRIX_SHAPES),
    "batch": ("scaled_batched_matmul", family.BATCH_OUT, family.BATCH_SHAPES),
    "rows": ("scaled_grouped_matmul", family.GROUPED_OUT, family.GROUPED_SHAPES),
    "depth": ("scaled_grouped_matmul_slice_k", family.SLICED_OUT, family.SLICED_SHAPES),
}
_PRODUCTS = {
    form: family.product(
        f"{name}(Tensor a, Tensor b{', Tensor group_list' if form in family.SLICES else ''}, "
        "Tensor? scale_a=None, Tensor? scale_b=None, Tensor? bias=None, "
        "int[] blocks=[1, 1, 1, 1], str format_a='plain', str format_b='plain', "
        f"ScalarType out_dtype={_FLOAT32})",
        sizes,
        *shapes,
        ops.dtype("a", *_ELEMENTS), ops.dtype("b", *_ELEMENTS),
        ops.dtype("scale_a", *_SCALES), ops.dtype("scale_b", *_SCALES),
        epilogue="acc + x_bias",
        operands={"bias": -0.0},
        slices=form if form in family.SLICES else "",
        results=_RESULTS,
        dtypes={"SCALE_A": "scale_a", "SCALE_B": "scale_b"},
        # Scales that differ along the depth belong to an operand, others to the sums.
        buckets={"DEPTH_A": "size(scale_a, 2) > 1", "DEPTH_B": "size(scale_b, 1) > 1"},
        choices={"FORMAT_A": ("format_a", *_WORDS), "FORMAT_B": ("format_b", *_WORDS)},
    )
    for form, (name, sizes, shapes) in _FORMS.items()
}  # fmt: skip

_dequantize = ops.kernel_op(
    "bringup::dequantize(Tensor x, Tensor? scale=None, Tensor? offset=None, int[] block=[1, 1], "
    f"int packed=1, str format='plain', ScalarType out_dtype={_FLOAT32}) -> Tensor",
    source=jit.Template(
        family.CSRC / "dequantize.cpp",
        abi="args",
        kind="device",
        dtypes={"ELEMENT_X": "x", "SCALE": "scale", "OFFSET": "offset", "ELEMENT_OUT": "out"},
        choices={"FORMAT": ("format", *_WORDS, *_PACKED)},
        kernel_kind="vector",
        flags=UNROLLED,
    ),
    outputs=ops.empty("x.shape[0]", "x.shape[1]", "x.shape[2] * packed", dtype="out_dtype"),
    strided=("scale", "offset"),
    checks=(
        ops.dtype("x", *_ELEMENTS), ops.dtype("scale", *_SCALES),
        ops.dtype("offset", torch.float32, torch.int32, torch.int8),
        ops.dtype("out_dtype", *_RESULTS, torch.int8),
    ),
)  # fmt: skip


def _as_stored(x: Tensor) -> tuple[Tensor, str]:
    """Return what a kernel gets for a tensor, and the format of its bytes."""
    name = _FORMATS.get(x.dtype)
    return (x, "plain") if name is None else (x.view(torch.uint8), name)


def _as_scale(
    name: str, scale: Tensor | None, rank: int, vectors: Literal["rows", "columns"]
) -> Tensor | None:
    """Return scales as [matrices or 1, rows of blocks, columns of blocks].

    Args:
        name: of the argument, for messages.
        scale: one element; or of the operand's rank, one for each block; or a dimension less, then
            one for each of its `vectors`.
        rank: of the operand, 2, or 3 where it is a batch.
        vectors: what scales of one dimension less are for.
    """
    if scale is None:
        return None
    if scale.dtype is torch.float8_e8m0fnu:
        scale = scale.view(torch.uint8)
    if scale.dim() == 0 or (scale.dim() == 1 and scale.shape[0] == 1):
        return scale.reshape(1, 1, 1)
    if scale.dim() in {1, rank - 1}:
        scale = scale.unsqueeze(-1 if vectors == "rows" else -2)
    elif scale.dim() != rank:
        raise ContractError(
            f"{name} must have one element, {rank} dimensions (one for each block), or "
            f"{rank - 1} (one for each of the {vectors}), got shape {list(scale.shape)}"
        )
    return scale if scale.dim() == 3 else scale.unsqueeze(0)


def _block(
    scale: Tensor | None, given: tuple[int, int] | None, group: tuple[int, int]
) -> tuple[int, int]:
    """Return the block of a scale: `given`, or a group of elements for powers of two."""
    if given is None and scale is not None and scale.dtype is torch.float8_e8m0fnu:
        return group
    return given or (1, 1)


def scaled_matmul(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    block_a: tuple[int, int] | None = None,
    block_b: tuple[int, int] | None = None,
    group_list: Tensor | None = None,
    slices: Literal["rows", "depth"] = "rows",
    out_dtype: str | torch.dtype | None = None,
) -> Tensor:
    """Return (scale_a * a [m, k]) times (scale_b * b [k, n]), plus bias, rounded once.

    A batch [items, m, k] times [items, k, n], or with `group_list` what `grouped_matmul` and
    `grouped_matmul_slice_k` do. Where no scale differs along the depth, sums of int8 are exact.

    Args:
        a: int8, float8_e4m3fn, float8_e5m2, float4_e2m1fn_x2, float16, bfloat16 or float32.
        b: of any of these, of another dtype too.
        scale_a: float32, float16, bfloat16 or float8_e8m0fnu: one element; a row of a each [m]; or
            of a's rank, a block of a each. An item of a batch or slice of the depth may have its
            own: [items, m], [items, rows, depth].
        scale_b: the same for columns [n], and [items, n], also of a group's b.
        bias: broadcast to the result.
        block_a: rows and depth of a block of a; (1, 1) by default, (1, 32) for float8_e8m0fnu.
        block_b: depth and columns of a block of b; (1, 1) and (32, 1).
        group_list: int32 or int64, where each group ends.
        slices: what of `a` the groups are slices of.
        out_dtype: float16, bfloat16 or float32; by default a's, or float32 where that is no such.

    Raises:
        ContractError: shapes or dtypes do not fit.
        KernelError: scales do not fit the blocks; or sums of int8 over more than 131071 of depth.

    Examples:
        >>> from bringup import kernels
        >>> a, b = torch.ones(2, 256).to(torch.float8_e4m3fn), torch.ones(256, 3).to(torch.int8)
        >>> kernels.scaled_matmul(a, b, scale_b=torch.full((2, 3), 0.5), block_b=(128, 1))[0, 0]
        tensor(128.)
    """
    form = "batch" if a.dim() == 3 else "" if group_list is None else slices
    if out_dtype is None:
        out_dtype = a.dtype if a.dtype in _RESULTS else torch.float32
    blocks = [*_block(scale_a, block_a, (1, _MX_GROUP)), *_block(scale_b, block_b, (_MX_GROUP, 1))]
    if a.dtype is torch.float4_e2m1fn_x2:
        a = dequantize(a, out_dtype=torch.bfloat16)
    if b.dtype is torch.float4_e2m1fn_x2:  # pairs lie along the depth, or along the columns
        along_depth = b.shape[-2] != a.shape[-1] or form == "depth"
        b = dequantize(b.mT if along_depth else b, out_dtype=torch.bfloat16)
        b = b.mT if along_depth else b
    (a, format_a), (b, format_b) = _as_stored(a), _as_stored(b)
    dtype = family.result_dtype("scaled_matmul", out_dtype)
    scale_a = _as_scale("scale_a", scale_a, 3 if form in {"batch", "depth"} else 2, "rows")
    scale_b = _as_scale("scale_b", scale_b, 3 if form else 2, "columns")
    groups = () if group_list is None else (group_list,)
    given = (a, b, *groups, scale_a, scale_b, bias, blocks, format_a, format_b, dtype)
    return _PRODUCTS[form](*given)


def dequantize(
    x: Tensor,
    scale: Tensor | None = None,
    offset: Tensor | None = None,
    *,
    block: tuple[int, int] | None = None,
    packed: Literal["int4"] | None = None,
    out_dtype: str | torch.dtype = torch.float32,
) -> Tensor:
    """Return (x - offset) * scale, rounded once, contiguous.

    Args:
        x: [rows, columns] or [items, rows, columns]; int8, float8_e4m3fn, float8_e5m2,
            float4_e2m1fn_x2, float16, bfloat16 or float32.
        scale: float32, float16, bfloat16 or float8_e8m0fnu: one element, a row each [rows], or of
            the rank of x, one for each block.
        offset: float32, int32 or int8, of scale's shape.
        block: rows and columns of a block; (1, 1) by default, (1, 32) for float8_e8m0fnu.
        packed: "int4": a byte of `x` (int8 or uint8) has two whole numbers, the lower half first;
            float4_e2m1fn_x2 lies so, too.
        out_dtype: float16, bfloat16, float32, or torch.int8, to which it rounds and saturates.

    Raises:
        ContractError: shapes or dtypes do not fit.
        KernelError: scales do not fit the blocks.
    """
    stored, found = _as_stored(x)
    if packed is not None or x.dtype is torch.float4_e2m1fn_x2:
        stored, found = x.view(torch.uint8), packed or "float4_e2m1fn"
    rows, columns = _block(scale, block, (1, _MX_GROUP))
    scales = [_as_scale(name, given, x.dim(), "rows") for name, given in
              (("scale", scale), ("offset", offset))]  # fmt: skip
    dtype = out_dtype if out_dtype is torch.int8 else family.result_dtype("dequantize", out_dtype)
    whole = stored if stored.dim() == 3 else stored.unsqueeze(0)
    result = _dequantize(whole, *scales, [rows, columns], 1 + (found in _PACKED), found, dtype)
    return result if x.dim() == 3 else result.squeeze(0)


_FUNCTIONS = {
    "relu": 1, "gelu": 1, "gelu_tanh": 1, "silu": 1, "sigmoid": 1, "tanh": 1, "leaky_relu": 2,
    "maximum": 2, "minimum": 2,
}  # fmt: skip
_BINARY = {
    ast.Add: "({} + {})",
    ast.Sub: "({} - {})",
    ast.Mult: "({} * {})",
    ast.Div: "quotient({}, {})",
}


class _Epilogue:
    """An expression in C++, and the names in it in order."""

    def __init__(self, text: str) -> None:
        self._text, self.names = text, list[str]()
        try:
            tree = ast.parse(text.strip(), mode="eval").body
        except SyntaxError as error:
            raise self._error(f"{error.msg}") from None
        self.code = self._code(tree)

    def _error(self, reason: str) -> ValueError:
        allowed = ", ".join(_FUNCTIONS)
        return ValueError(
            f"fused_matmul({self._text!r}): {reason}; an epilogue has `acc`, names of tensors, "
            f"numbers, + - * / and {allowed}"
        )

    def _code(self, node: ast.expr) -> str:
        if isinstance(node, ast.Name):
            if node.id == "acc":
                return "acc"
            if node.id in {"a", "b", "out", "out_dtype"}:
                raise self._error(f"{node.id} is taken")
            if node.id not in self.names:
                self.names.append(node.id)
            return f"x_{node.id}"
        if isinstance(node, ast.Constant) and not isinstance(node.value, bool):
            if not isinstance(node.value, (int, float)):
                raise self._error(f"it cannot have {node.value!r}")
            return f"splat(T({float(node.value)!r}))"
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return f"(-{self._code(node.operand)})"
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return _BINARY[type(node.op)].format(self._code(node.left), self._code(node.right))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            name = node.func.id
            if _FUNCTIONS.get(name) == len(node.args):
                return f"{name}({', '.join(map(self._code, node.args))})"
        raise self._error(f"it cannot have {ast.unparse(node)!r}")


@functools.cache
def fused_matmul(epilogue: str) -> ops.KernelOperator:
    """Return an operator for a product and what follows it, as one kernel: `op(a, b, ...)`.

    It takes a [m, k] and b [k, n], both of int8, float16, bfloat16, float32 or float64, then the
    tensors that the epilogue names, in the order in which it does and each broadcast to [m, n], and
    `out_dtype`, by default a's dtype; to int8 it rounds and saturates. The same text is the same
    operator.

    Args:
        epilogue: an expression over the sums `acc` and names of tensors.

    Raises:
        ValueError: it has something else.

    Examples:
        >>> from bringup import kernels
        >>> gated = kernels.fused_matmul("silu(acc + bias) * gate")
        >>> a, b = torch.ones(2, 3), torch.ones(3, 4)
        >>> gated(a, b, bias=torch.full((4,), -3.0), gate=torch.ones(2, 4)).sum()
        tensor(0.)
    """
    read = _Epilogue(epilogue)
    name = hashlib.sha256(read.code.encode()).hexdigest()[:12]
    tensors = "".join(f", Tensor {each}" for each in read.names)
    return family.product(
        f"fused_matmul_{name}(Tensor a, Tensor b{tensors}, ScalarType? out_dtype=None)",
        family.MATRIX_OUT,
        *family.MATRIX_SHAPES,
        ops.dtype("a", torch.int8, *family.FLOATS),
        ops.same_dtype("a", "b"),
        epilogue=read.code,
        operands=dict.fromkeys(read.names, 0.0),
        results=(torch.int8, *family.FLOATS),
    )
