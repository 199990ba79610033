"""The operators that bringup ships: written in C++ against `kernel.h`, compiled by `jit`,
registered by `ops`.

`add_layer_norm`, `bias_gelu`, `attention` (sequences of different length, `actual_seq_lengths:
int[]`), `mean_pool` and `packed_linear` with `pack_weight` are in `torch.ops.bringup` from the
first use of one of them or after `load()`. `build(name)` compiles one of `names()` ahead of its
first call, `register_attention()` offers `attention` to transformers' models. float32 and float64;
no backward yet.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bringup.kernels._transformers import register_attention

if TYPE_CHECKING:
    from bringup.kernels._operators import (
        add_layer_norm,
        attention,
        bias_gelu,
        build,
        mean_pool,
        names,
        pack_weight,
        packed_linear,
    )

__all__ = [
    "add_layer_norm",
    "attention",
    "bias_gelu",
    "build",
    "load",
    "mean_pool",
    "names",
    "pack_weight",
    "packed_linear",
    "register_attention",
]

_LAZY = frozenset(__all__) - {"load", "register_attention"}


def load() -> None:
    """Register all shipped operators in `torch.ops.bringup`. Nothing is compiled yet; calling it
    again is free.
    """
    importlib.import_module("bringup.kernels._operators")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module("bringup.kernels._operators"), name)
    raise AttributeError(f"module 'bringup.kernels' has no attribute {name!r}")
