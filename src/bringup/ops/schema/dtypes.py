"""dtypes by torch's ScalarType number (c10/core/ScalarType.h), which schemas hold as a default."""

from __future__ import annotations

import torch

from bringup._language.signature import SCALAR_TYPES

DTYPES: dict[int, torch.dtype] = {
    number: getattr(torch, name)
    for number, name in enumerate(SCALAR_TYPES.split())
    if hasattr(torch, name)
}
