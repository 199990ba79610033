"""Defaults as Python writes them: torch gives dtypes, layouts and memory formats as numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bringup._language.signature import SCALAR_TYPES

DTYPES: dict[int, torch.dtype] = {
    number: getattr(torch, name)
    for number, name in enumerate(SCALAR_TYPES.split())
    if hasattr(torch, name)
}
# In the order of c10::Layout and c10::MemoryFormat.
LAYOUTS = (
    torch.strided, torch.sparse_coo, torch.sparse_csr, torch._mkldnn, torch.sparse_csc,
    torch.sparse_bsr, torch.sparse_bsc, torch.jagged,
)  # fmt: skip
MEMORY_FORMATS = (
    torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d,
)  # fmt: skip
_READ: dict[str, Callable[[Any], Any]] = {
    "ScalarType": DTYPES.__getitem__,
    "Layout": LAYOUTS.__getitem__,
    "MemoryFormat": MEMORY_FORMATS.__getitem__,
}


def default_of(argument: Any) -> Any:
    if not argument.has_default_value():
        return None
    value = argument.default_value
    kind = str(argument.real_type).removeprefix("Optional[").removesuffix("]")
    return _READ[kind](value) if kind in _READ and isinstance(value, int) else value
