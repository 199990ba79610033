"""`bringup::attention` for the models of transformers, through its attention interface.

The lengths are an input of the model: `model(input_ids, actual_seq_lengths=[n])` reaches the
attention function as a keyword, layer by layer, so nothing about one example's length is baked into
a compiled or captured model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["register_attention"]


def register_attention(name: str = "bringup") -> str:
    """Register `bringup::attention` with transformers and return the name to give as
    `attn_implementation=`.

    For encoders: bidirectional, no dropout, as many key heads as query heads. The model is called
    with `actual_seq_lengths`, one int per sequence; positions behind them are padding. No mask
    tensor is built.

    Raises:
        ImportError: transformers is not installed.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    from bringup.kernels import load

    load()
    AttentionInterface.register(name, _attention)
    AttentionMaskInterface.register(name, _no_mask)
    return name


_REFUSED = ("is_causal", "position_bias", "sliding_window", "softcap")
_NO_MASK = (
    'attn_implementation "bringup" takes no mask: give the lengths as actual_seq_lengths=[n, ...] '
    "and leave attention_mask out"
)


def _no_mask(*, attention_mask: Any = None, **_: Any) -> None:
    """What transformers asks for a mask: there is none, the lengths say it all."""
    if attention_mask is not None:
        raise ValueError(_NO_MASK)


def _attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    actual_seq_lengths: Sequence[int] | None = None,
    **options: Any,
) -> tuple[Any, None]:
    """transformers' signature: query, key, value are [batch, heads, length, depth]; returns [batch,
    length, heads, depth]. Raises `ValueError` for what `bringup::attention` cannot do.
    """
    import torch

    if actual_seq_lengths is None:
        raise ValueError(
            'attn_implementation "bringup" needs the lengths: call the model with '
            "actual_seq_lengths=[n, ...], one int per sequence"
        )
    if getattr(module, "is_causal", False):
        raise ValueError(
            'attn_implementation "bringup" is for encoders: this module asks for causal attention'
        )
    if attention_mask is not None:
        raise ValueError(_NO_MASK)
    for option in _REFUSED:
        if options.get(option):
            raise ValueError(
                f'attn_implementation "bringup" does not support {option}, got {options[option]!r}'
            )
    if dropout:
        raise ValueError(
            f'attn_implementation "bringup" has no dropout, got {dropout}: call model.eval()'
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return torch.ops.bringup.attention(query, key, value, actual_seq_lengths, scale), None
