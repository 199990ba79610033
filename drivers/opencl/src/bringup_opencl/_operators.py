"""The table: which operator has its kernel where, and what the kernel is called with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import torch

from bringup.devices import POINTWISE, Operator

__all__ = ["OPERATORS", "Operator"]

Supported: TypeAlias = torch.dtype | Literal["floating", "integral", "bool"]

_LANES = 64  # of a block that goes along a row (kernels/rows.h)


_SINGLE: tuple[Supported, ...] = (torch.float32,)
_NUMBERS: tuple[Supported, ...] = (torch.float32, torch.float64, "integral")
_FLOATING: tuple[Supported, ...] = (torch.float32, torch.float64)
_ANY: tuple[Supported, ...] = (torch.float32, torch.float64, "integral", "bool")
_INDEXED = {"T": "self", "I": "index"}
_TARGETS = {"T": "self", "I": "target"}


def _raw(
    name: str,
    place: str,
    args: str,
    grid: str | Sequence[str],
    *,
    block: int | Sequence[int] = _LANES,
    strided: str = "",
    dtypes: Mapping[str, str] | None = None,
    supports: tuple[Supported, ...] = _SINGLE,
) -> Operator:
    file, _, entry = place.partition(":")
    return Operator(
        f"aten::{name}",
        supports,
        file=file,
        kind="raw",
        entry=entry,
        dtypes=dtypes,
        strided=tuple(strided.split()),
        args=args,
        grid=grid,
        block=block,
    )


def _reduction(
    name: str, entry: str, supports: tuple[Supported, ...], file: str = "reductions.cl"
) -> Operator:
    return Operator(f"aten::{name}", supports, file=file, kind="reduction", entry=entry)


def _each(count: str) -> str:
    """Return the blocks for `count` elements, of which a thread takes several if there are many."""
    blocks = f"(({count} + {_LANES - 1}) // {_LANES})"
    return f"{blocks} * ({blocks} < 65536) + 65536 * ({blocks} >= 65536)"


def _matrix(name: str, rank: int) -> str:
    batch = f"stride({name}, 0)" if rank == 3 else "0"
    return f"ptr({name}), {batch}, stride({name}, -2), stride({name}, -1)"


def _tiles(batches: str, only: str = "1") -> tuple[str, str, str]:
    """Return a block for each tile of the result; where not `only`, the operator falls back."""
    columns = f"((size(out, -1) + 31) // 32) * ({batches} > 0) * (size(out, -2) > 0)"
    return f"({columns} + 1) * ({only}) - 1", "(size(out, -2) + 31) // 32", batches


def _product(name: str, rank: int) -> Operator:
    operands = f"{_matrix('self', rank)}, {_matrix('mat2', rank)}, {_matrix('out', rank)}"
    args = f"{operands}, size(out, -2), size(out, -1), size(self, -1)"
    batches = "size(out, 0)" if rank == 3 else "1"
    return _raw(
        name, "matmul.cl:product", args, _tiles(batches), block=(8, 8), strided="self mat2 out"
    )


def _added(name: str, first: str, second: str, rank: int) -> Operator:
    args = (
        f"ptr(self), numel(self), size(self, -1), {_matrix(first, rank)}, {_matrix(second, rank)}, "
        f"ptr(out), size(out, -2), size(out, -1), size({first}, -1), f32(beta), f32(alpha)"
    )
    batches = "size(out, 0)" if rank == 3 else "1"
    # What is added is one row or one element, or as large as the result.
    grid = _tiles(batches, "ndim(self) == 1 or (ndim(self) > 0 and numel(self) == numel(out))")
    return _raw(name, "matmul.cl:added", args, grid, block=(8, 8), strided=f"{first} {second}")


def _row(name: str, entry: str, argument: str) -> Operator:
    second = ", ptr(output)" if "backward" in entry else ""
    along = f"size({argument}, dim), stride({argument}, dim)"
    args = f"ptr({argument}){second}, ptr(out), {along}"
    n = f"size({argument}, dim)"
    return _raw(name, f"softmax.cl:{entry}", args, f"numel(out) // ({n} + ({n} == 0))")


_PIECES = 30  # tensors that cat.cl takes: a call has at most 64 plain values
_NORM_ROWS = "numel(mean) + (numel(mean) == 0)"

OPERATORS: tuple[Operator, ...] = (
    *POINTWISE,
    # Elements as they are: what `copy_` between layouts runs.
    Operator("aten::conj_physical.out", ("floating", "integral", "bool"), "self"),
    Operator("aten::isneginf", ("floating",), "self == -inf"),
    _reduction("sum.dim_IntList", "sum", _NUMBERS),
    _reduction("mean.dim", "mean", _FLOATING),
    _reduction("amax", "amax", _NUMBERS),
    _reduction("amin", "amin", _NUMBERS),
    _reduction("max", "amax", _NUMBERS),
    _reduction("min", "amin", _NUMBERS),
    _reduction("max.dim", "max_with_index", _NUMBERS),
    _reduction("min.dim", "min_with_index", _NUMBERS),
    *(_reduction(name, "all", _ANY) for name in ("all", "all.dim", "all.dims")),
    *(_reduction(name, "any", _ANY) for name in ("any", "any.dim", "any.dims")),
    *(_reduction(name, "prod", _NUMBERS) for name in ("prod", "prod.dim_int")),
    _reduction("argmax", "argmax", _NUMBERS),
    _reduction("argmin", "argmin", _NUMBERS),
    _reduction("linalg_vector_norm", "norm", _FLOATING, "norm.cl"),
    _product("mm", 2),
    _product("bmm", 3),
    _added("addmm", "mat1", "mat2", 2),
    _added("baddbmm", "batch1", "batch2", 3),
    _row("_softmax", "softmax", "self"),
    _row("_log_softmax", "log_softmax", "self"),
    _row("_softmax_backward_data", "softmax_backward", "grad_output"),
    _row("_log_softmax_backward_data", "log_softmax_backward", "grad_output"),
    _raw(
        "native_layer_norm",
        "layer_norm.cl:layer_norm",
        "ptr(input), ptr(weight), ptr(bias), ptr(out0), ptr(out1), ptr(out2), "
        "numel(input) // (numel(out1) + (numel(out1) == 0)), f32(eps)",
        "numel(out1) * (numel(input) > 0) - (numel(out1) > 0 and numel(input) == 0)",
    ),
    _raw(
        "native_layer_norm_backward",
        "layer_norm.cl:layer_norm_backward",
        "ptr(grad_out), ptr(input), ptr(mean), ptr(rstd), ptr(weight), ptr(out0), ptr(out1), "
        f"ptr(out2), numel(mean), numel(input) // ({_NORM_ROWS})",
        f"(numel(mean) + (numel(input) // ({_NORM_ROWS}) + 63) // 64 + 1) * (numel(input) > 0) - 1",
    ),
    _raw(
        "index_select",
        "indexing.cl:index_select",
        "ptr(self), ptr(index), ptr(out), size(self, dim), stride(self, dim), size(out, dim), "
        "stride(out, dim), numel(out)",
        _each("numel(out)"),
        dtypes=_INDEXED,
        supports=_ANY,
    ),
    _raw(
        "cat",
        "cat.cl:cat",
        ", ".join(f"ptr(tensors[{i}]), numel(tensors[{i}])" for i in range(_PIECES))
        + ", ptr(out), size(out, dim), stride(out, dim), numel(out)",
        f"({_each('numel(out)')} + 1) * (len(tensors) <= {_PIECES}) - 1",
        dtypes={"T": "tensors"},
        supports=_ANY,
    ),
    *(
        _raw(
            name,
            "fills.cl:triangle",
            f"ptr(self), ptr(out), diagonal, size(self, -2), size(self, -1), i32({lower}), "
            "numel(out)",
            _each("numel(out)"),
            supports=_ANY,
        )
        for name, lower in (("tril", 1), ("triu", 0))
    ),
    _raw(
        "arange.start_out",
        "fills.cl:arange",
        "ptr(out), start, step, numel(out)",
        _each("numel(out)"),
        dtypes={"T": "out"},
        supports=("integral",),
    ),
    _raw(
        "embedding_dense_backward",
        "indexing.cl:embedding_backward",
        "ptr(grad_output), ptr(indices), ptr(out), numel(indices), size(out, 1), padding_idx",
        "(size(out, 0) * (size(out, 1) > 0) + 1) * (scale_grad_by_freq == 0) - 1",
        dtypes={"T": "grad_output", "I": "indices"},
    ),
    *(
        _raw(
            f"{name}_forward",
            "nll_loss.cl:nll_loss",
            "ptr(self), ptr(target), ptr(weight), ptr(out0), ptr(out1), reduction, ignore_index, "
            f"{classes}, {inner}, numel(target)",
            "1",
            dtypes=_TARGETS,
        )
        for name, classes, inner in (
            ("nll_loss", "size(self, -1)", "1"),
            ("nll_loss2d", "size(self, 1)", "size(self, 2) * size(self, 3)"),
        )
    ),
    *(
        _raw(
            f"{name}_backward",
            "nll_loss.cl:nll_loss_backward",
            "ptr(grad_output), ptr(target), ptr(weight), ptr(total_weight), ptr(out), reduction, "
            f"ignore_index, {classes}, {inner}, numel(out)",
            _each("numel(out)"),
            dtypes=_TARGETS,
        )
        for name, classes, inner in (
            ("nll_loss", "size(self, -1)", "1"),
            ("nll_loss2d", "size(self, 1)", "size(self, 2) * size(self, 3)"),
        )
    ),
)
