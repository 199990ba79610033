"""`bringup::attention` for transformers, through its attention interface: `model(input_ids,
actual_seq_lengths=[n])` reaches it as a keyword, so no length is baked into a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bringup.errors import BringupError

if TYPE_CHECKING:
    import torch


LENGTHS = "bringup_lengths"
"""The attention implementation of models that `use_lengths` has prepared."""


def register_attention(name: str = "bringup") -> str:
    """Register `bringup::attention` with transformers and return the name to give as
    `attn_implementation=`.

    For encoders: bidirectional, no dropout, no cache. The model is called
    with `actual_seq_lengths`, one int per sequence; positions behind them are padding. No mask
    tensor is built.

    Raises:
        ImportError: transformers is not installed.
    """
    import torch

    from bringup import kernels
    from bringup.ops import register_attention as register

    kernels.load()

    def attend(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        actual_seq_lengths: Sequence[int],
        scaling: float,
        num_key_value_groups: int = 1,  # the operator takes grouped heads as they are
    ) -> torch.Tensor:
        if key.shape[2] != query.shape[2]:  # no lengths of keys are known
            raise ValueError(
                f'attn_implementation "{name}" takes as many keys as queries, got {key.shape[2]} '
                f"for {query.shape[2]}: call the model without a cache"
            )
        return torch.ops.bringup.attention(query, key, value, actual_seq_lengths, scaling)

    return register(name, attend, returns="blhd")


def register_lengths() -> None:
    """Register attention over lengths as `LENGTHS`, for checked models (`use_lengths`)."""
    from transformers import AttentionMaskInterface

    from bringup import kernels, ops

    kernels.load()
    ops.register_attention(LENGTHS, _attend, returns="blhd")
    AttentionMaskInterface.register(LENGTHS, _no_mask)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    actual_seq_lengths: Sequence[int],
    scaling: float,
    is_causal: bool = False,
    sliding_window: int | None = None,
    num_key_value_groups: int = 1,  # the operator takes grouped heads as they are
) -> torch.Tensor:
    import torch  # imported late: the package imports this module before torch is asked for

    if key.shape[2] != query.shape[2]:
        raise BringupError(
            f"attention over lengths has as many keys as rows, got {key.shape[2]} for "
            f"{query.shape[2]}: it takes no cache and no cross-attention"
        )
    attention = torch.ops.bringup.attention
    window = sliding_window or 0
    return attention(query, key, value, actual_seq_lengths, scaling, is_causal, window)


def _no_mask(**options: Any) -> None:
    if options.get("attention_mask") is not None:
        raise ValueError("attention over lengths takes no mask: leave attention_mask out")
