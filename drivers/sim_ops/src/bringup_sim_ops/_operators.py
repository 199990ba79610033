"""The table: which operator has its kernel where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch

__all__ = ["OPERATORS", "Operator"]

Supported: TypeAlias = torch.dtype | Literal["floating", "integral", "bool"]

_FLOATING: tuple[Supported, ...] = ("floating",)
_NUMBERS: tuple[Supported, ...] = ("floating", "integral")
_EVERYTHING: tuple[Supported, ...] = ("floating", "integral", "bool")
_PLAIN: tuple[Supported, ...] = (torch.float32, torch.float64)


@dataclass(frozen=True)
class Operator:
    """One operator of torch and its kernel; the arguments of `devices.kernel`.

    Attributes:
        name: "aten::add", for the family of its usual overload, or with the overload.
        file: in the folder `kernels`.
        kind: as of `devices.kernel`.
        entry: the function or class in the file.
        supports: the dtypes that it computes in; others fall back.
        dtypes: of a raw kernel, macro -> argument whose C type it is.
        strided: of a raw kernel, the arguments that it takes in any layout.
        flags: more options of the compiler.
    """

    name: str
    file: str
    kind: Literal["pointwise", "reduction", "raw"]
    entry: str
    supports: tuple[Supported, ...]
    dtypes: Mapping[str, str] | None = None
    strided: tuple[str, ...] = field(default=())
    flags: tuple[str, ...] = field(default=())


def _pointwise(names: str, supports: tuple[Supported, ...]) -> list[Operator]:
    return [
        Operator(f"aten::{name}", "pointwise.cpp", "pointwise", name.partition(".")[0], supports)
        for name in names.split()
    ]


def _reduction(name: str, entry: str, supports: tuple[Supported, ...]) -> Operator:
    return Operator(f"aten::{name}", "reductions.cpp", "reduction", entry, supports)


def _raw(
    name: str,
    file: str,
    entry: str,
    *,
    supports: tuple[Supported, ...] = _PLAIN,
    dtypes: Mapping[str, str] | None = None,
    strided: tuple[str, ...] = (),
    flags: tuple[str, ...] = (),
) -> Operator:
    return Operator(f"aten::{name}", file, "raw", entry, supports, dtypes, strided, flags)


# Fused products and sums, as a library of products has.
_PRODUCTS = ("-ffp-contract=fast",)
_INDEXED = {"T": "self", "I": "index"}
_TARGETS = {"T": "self", "I": "target"}

OPERATORS: tuple[Operator, ...] = (
    *_pointwise("add sub mul neg addcmul where.self clamp relu pow.Tensor_Tensor", _NUMBERS),
    *_pointwise("pow.Scalar", _NUMBERS),
    # Of integers torch refuses a negative exponent by its value, which the host does.
    Operator("aten::pow.Tensor_Scalar", "pointwise.cpp", "pointwise", "pow_of_number", _FLOATING),
    *_pointwise("div reciprocal addcdiv lerp sqrt rsqrt exp log tanh sigmoid silu gelu", _FLOATING),
    *_pointwise(
        "gelu_backward silu_backward threshold_backward tanh_backward sigmoid_backward "
        "native_dropout_backward",
        _FLOATING,
    ),
    _reduction("sum.dim_IntList", "sum", _NUMBERS),
    _reduction("mean.dim", "mean", _FLOATING),
    _reduction("amax", "amax", _NUMBERS),
    _reduction("max", "max", _NUMBERS),
    _reduction("max.dim", "max_with_index", _NUMBERS),
    _reduction("argmax", "argmax", _NUMBERS),
    _reduction("linalg_vector_norm", "linalg_vector_norm", _FLOATING),
    _raw("mm", "matmul.cpp", "product", strided=("self", "mat2"), flags=_PRODUCTS),
    _raw("bmm", "matmul.cpp", "product", strided=("self", "mat2"), flags=_PRODUCTS),
    _raw("addmm", "matmul.cpp", "addmm", strided=("self", "mat1", "mat2"), flags=_PRODUCTS),
    _raw("_softmax", "softmax.cpp", "softmax", strided=("self",)),
    _raw("_log_softmax", "softmax.cpp", "log_softmax", strided=("self",)),
    _raw("_softmax_backward_data", "softmax.cpp", "softmax_backward"),
    _raw("_log_softmax_backward_data", "softmax.cpp", "log_softmax_backward"),
    _raw("native_layer_norm", "layer_norm.cpp", "layer_norm"),
    _raw("native_layer_norm_backward", "layer_norm.cpp", "layer_norm_backward"),
    _raw("nll_loss_forward", "nll_loss.cpp", "nll_loss", dtypes=_TARGETS),
    _raw("nll_loss_backward", "nll_loss.cpp", "nll_loss_backward", dtypes=_TARGETS),
    _raw("nll_loss2d_forward", "nll_loss.cpp", "nll_loss", dtypes=_TARGETS),
    _raw("nll_loss2d_backward", "nll_loss.cpp", "nll_loss_backward", dtypes=_TARGETS),
    _raw(
        "_scaled_dot_product_flash_attention_for_cpu",
        "attention.cpp",
        "attention",
        strided=("query", "key", "value", "attn_mask"),
        flags=_PRODUCTS,
    ),
    _raw(
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        "attention.cpp",
        "attention_backward",
        strided=("grad_out", "query", "key", "value", "out", "logsumexp", "attn_mask"),
        flags=_PRODUCTS,
    ),
    _raw(
        "index_select",
        "indexing.cpp",
        "index_select",
        supports=_EVERYTHING,
        dtypes=_INDEXED,
        strided=("self", "index"),
    ),
    _raw(
        "gather",
        "indexing.cpp",
        "gather",
        supports=_EVERYTHING,
        dtypes=_INDEXED,
        strided=("self", "index"),
    ),
    _raw(
        "scatter_add",
        "index_adding.cpp",
        "scatter_add",
        dtypes=_INDEXED,
        strided=("self", "index", "src"),
    ),
    _raw(
        "embedding_dense_backward",
        "index_adding.cpp",
        "embedding_backward",
        dtypes={"T": "grad_output", "I": "indices"},
    ),
    _raw("cumsum", "cumsum.cpp", "cumsum", dtypes={"T": "self", "OUT": "out"}, strided=("self",)),
    _raw("sort.stable", "ordering.cpp", "sort", strided=("self",)),
    _raw("topk", "ordering.cpp", "topk", strided=("self",)),
    _raw(
        "cat",
        "cat.cpp",
        "cat",
        supports=_EVERYTHING,
        dtypes={"T": "tensors"},
        strided=("tensors",),
    ),
)
