"""`bringup::attention` for the models of transformers, through its attention interface.

The lengths are an input of the model: `model(input_ids, actual_seq_lengths=[n])` reaches the
attention function as a keyword, layer by layer, so nothing about one example's length is baked into
a compiled or captured model.
"""

from __future__ import annotations

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
    from bringup.kernels import attention
    from bringup.ops import register_attention as register

    return register(name, attention, returns="blhd")
