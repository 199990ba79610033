"""The table: which operator has its kernel where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import torch

from bringup.devices import POINTWISE, Operator

__all__ = ["OPERATORS", "Operator"]

Supported: TypeAlias = torch.dtype | Literal["floating", "integral", "bool"]

_FLOATING: tuple[Supported, ...] = ("floating",)
_NUMBERS: tuple[Supported, ...] = ("floating", "integral")
_EVERYTHING: tuple[Supported, ...] = ("floating", "integral", "bool")
_PLAIN: tuple[Supported, ...] = (torch.float32, torch.float64)


def _reduction(name: str, entry: str, supports: tuple[Supported, ...]) -> Operator:
    return Operator(f"aten::{name}", supports, file="reductions.cpp", kind="reduction", entry=entry)


def _raw(
    name: str,
    file: str,
    entry: str,
    *,
    supports: tuple[Supported, ...] = _PLAIN,
    dtypes: Mapping[str, str] | None = None,
    strided: tuple[str, ...] = (),
    results: tuple[str, ...] = ("out",),
    flags: tuple[str, ...] = (),
) -> Operator:
    """Declare one; `strided` arguments and `results` may have any layout."""
    return Operator(
        f"aten::{name}",
        supports,
        file=file,
        kind="raw",
        entry=entry,
        dtypes=dtypes,
        strided=strided + results,
        flags=flags,
    )


# Fused products and sums, as a library of products has.
_PRODUCTS = ("-ffp-contract=fast",)
_PAIR = ("out0", "out1")
_INDEXED = {"T": "self", "I": "index"}
_TARGETS = {"T": "self", "I": "target"}

# Of integers, too, but for a number as exponent: torch refuses a negative one, as the host does.
_POWERS = ("aten::pow.Tensor_Tensor", "aten::pow.Scalar")

OPERATORS: tuple[Operator, ...] = (
    *(row for row in POINTWISE if row.name not in _POWERS),
    *(Operator(name, _NUMBERS, file="pow.cpp", entry="pow") for name in _POWERS),
    *(
        Operator(f"aten::random_.{form}", ("integral",), file="random.cpp", entry=entry)
        for form, entry in (("default", "random_all"), ("to", "random_to"), ("from", "random_from"))
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
    _raw("native_layer_norm", "layer_norm.cpp", "layer_norm", results=()),
    _raw("native_layer_norm_backward", "layer_norm.cpp", "layer_norm_backward", results=()),
    _raw("nll_loss_forward", "nll_loss.cpp", "nll_loss", dtypes=_TARGETS, results=()),
    _raw("nll_loss_backward", "nll_loss.cpp", "nll_loss_backward", dtypes=_TARGETS, results=()),
    _raw("nll_loss2d_forward", "nll_loss.cpp", "nll_loss", dtypes=_TARGETS, results=()),
    _raw("nll_loss2d_backward", "nll_loss.cpp", "nll_loss_backward", dtypes=_TARGETS, results=()),
    _raw(
        "_scaled_dot_product_flash_attention_for_cpu", "attention.cpp", "attention",
        strided=("query", "key", "value", "attn_mask"), results=("out0", "out1"), flags=_PRODUCTS,
    ),
    _raw(
        "_scaled_dot_product_flash_attention_for_cpu_backward", "attention.cpp",
        "attention_backward",
        strided=("grad_out", "query", "key", "value", "out", "logsumexp", "attn_mask"),
        results=("out0", "out1", "out2"), flags=_PRODUCTS,
    ),
    _raw(
        "index_select", "indexing.cpp", "index_select", supports=_EVERYTHING, dtypes=_INDEXED,
        strided=("self", "index"),
    ),
    _raw(
        "index.Tensor", "indexing.cpp", "index_elements", supports=_EVERYTHING,
        dtypes={"T": "self", "I": "indices"}, strided=("self", "indices"),
    ),
    _raw(
        "gather", "indexing.cpp", "gather", supports=_EVERYTHING, dtypes=_INDEXED,
        strided=("self", "index"),
    ),
    _raw(
        "scatter_add", "index_adding.cpp", "scatter_add", dtypes=_INDEXED,
        strided=("self", "index", "src"),
    ),
    _raw(
        "embedding_dense_backward", "index_adding.cpp", "embedding_backward",
        dtypes={"T": "grad_output", "I": "indices"}, results=(),
    ),
    _raw("cumsum", "cumsum.cpp", "cumsum", dtypes={"T": "self", "OUT": "out"}, strided=("self",)),
    _raw("sort.stable", "ordering.cpp", "sort", strided=("self",), results=_PAIR),
    _raw("topk", "ordering.cpp", "topk", strided=("self",), results=_PAIR),
    _raw(
        "cat", "cat.cpp", "cat", supports=_EVERYTHING, dtypes={"T": "tensors"},
        strided=("tensors",),
    ),
)  # fmt: skip
