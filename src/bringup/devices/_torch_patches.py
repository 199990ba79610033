"""What functions of torch in Python lack for PrivateUse1: attention over jagged nested tensors, the
fake form of LSTM cells without biases, and deep copies with metadata.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from bringup import _native
from bringup._after_import import after_import


def complete(device: str) -> None:
    """Complete them for `device`, now or when torch imports them."""
    after_import("torch.nested._internal.ops", functools.partial(_complete_attention, device))
    after_import("torch._meta_registrations", _complete_cells)
    _keep_metadata(device)


def _keep_metadata(device: str) -> None:
    torch: Any = importlib.import_module("torch")
    original = torch.Tensor.__deepcopy__
    keep = _native.torch_library("a device").devices.keep_metadata

    @functools.wraps(original)
    def deepcopy(self: Any, memo: dict[int, Any]) -> Any:
        copied = original(self, memo)
        if not torch.overrides.has_torch_function_unary(self) and self.device.type == device:
            keep(self, copied)
        return copied

    torch.Tensor.__deepcopy__ = deepcopy


def _complete_attention(device: str) -> None:
    ops: Any = importlib.import_module("torch.nested._internal.ops")
    original = ops.jagged_scaled_dot_product_attention
    inner: list[Any] = [_attention]

    def outside_graphs() -> None:  # it reads the lengths, as torch's own form does
        inner[0] = importlib.import_module("torch._dynamo").disable(_attention)

    after_import("torch._dynamo", outside_graphs)

    @functools.wraps(original)
    def attention(query: Any, key: Any, value: Any, *args: Any, **options: Any) -> Any:
        if query.device.type == device:
            found = inner[0](query, key, value, *args, **options)
            if found is not None:
                return found
        return original(query, key, value, *args, **options)

    ops.jagged_scaled_dot_product_attention = attention


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention of each sequence for itself, where torch would take its `math` form; else None."""
    sdpa: Any = importlib.import_module("torch.nested._internal.sdpa")
    nested: Any = importlib.import_module("torch.nested._internal.nested_tensor")
    functional: Any = importlib.import_module("torch.nn.functional")
    tensors = (query, key, value)
    if not all(isinstance(t, nested.NestedTensor) for t in tensors):
        return None  # refused by torch
    if query._ragged_idx == 1 or attn_mask is not None:
        return None
    query, key, value, _ = sdpa._autocast(*tensors, None)
    sdpa._validate_sdpa_input(query, key, value, None, dropout_p, is_causal, scale)
    chosen = sdpa._select_sdp_backend(query, key, value, None, dropout_p, is_causal, enable_gqa)
    if chosen != sdpa.SDPBackend.MATH:
        return None
    parts = [
        t.transpose(1, 2).values().split(t.offsets().diff().tolist()) for t in (query, key, value)
    ]
    results = [
        functional.scaled_dot_product_attention(
            *(part.transpose(0, 1) for part in one), dropout_p=dropout_p, scale=scale
        ).transpose(0, 1)
        for one in zip(*parts, strict=True)
    ]
    return nested.nested_view_from_values_offsets_lengths(
        functional.torch.cat(results),
        query.offsets(),
        query.lengths(),
        min_seqlen=query._maybe_min_seqlen,
        max_seqlen=query._maybe_max_seqlen,
    ).transpose(1, 2)


def _complete_cells() -> None:
    """torch's check reads biases that a cell need not have."""
    registrations: Any = importlib.import_module("torch._meta_registrations")
    original = registrations.rnn_cell_checkSizes

    @functools.wraps(original)
    def check_sizes(gates: Any, hidden: Any, bias: Any, other: Any, *rest: Any) -> None:
        if bias is None:
            bias = other = gates.new_empty(gates.shape[1])
        original(gates, hidden, bias, other, *rest)

    registrations.rnn_cell_checkSizes = check_sizes
