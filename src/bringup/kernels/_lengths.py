"""`use_lengths`: a model of transformers takes lengths instead of a mask. Whether padding is inert
in it is found by running it (`_lengths_check`).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bringup.errors import BringupError
from bringup.kernels._transformers import LENGTHS, register_lengths

if TYPE_CHECKING:
    import torch


_NOT_BESIDE_LENGTHS = ("attention_mask", "position_ids", "past_key_values", "cache_position")


def use_lengths(
    model: Any, example_inputs: Mapping[str, torch.Tensor] | None = None, *, tolerance: float = 0.0
) -> Any:
    """Prepare a model of transformers, in place, to be called with `actual_seq_lengths`, one int
    for each sequence, instead of `attention_mask`: sequences are padded on the right, attention
    (`bringup::attention`) reads no padded row, and no mask is built. What the model gives for
    padded rows means nothing.

    The model is run a few times before it is taken, and refused where padding is not inert: its
    rows that count must be those of the model with a mask, whatever stands in the padding and
    however long it is, and no sequence may depend on another. Every attention must see what
    causality, a window and lengths say, for longer sequences too than those that run.

    Calls have no cache: `use_cache` is False, and `past_key_values`, `position_ids` and masks are
    refused.

    Args:
        model: a `PreTrainedModel` in evaluation mode.
        example_inputs: what the check runs, by keyword: tensors [B, S, ...] with B and S of at
            least 2, for example `input_ids`, without a mask. None: random token ids [3, 24].
        tolerance: how far results may lie apart, relative to the largest; 0 for 1e-4 in float32,
            1e-9 in float64, 3e-2 in bfloat16 and 5e-3 in float16.

    Returns:
        `model`.

    Raises:
        BringupError: padding is not inert in this model, or its attention does not go through
            transformers' interface; the message has the cause. The model is as it was.
        ImportError: transformers is not installed.
    """
    from bringup.kernels._lengths_check import check

    before = _checked_kind(model)
    register_lengths()
    try:
        check(model, example_inputs, tolerance, before)
        model.set_attn_implementation(LENGTHS)
    except BaseException:
        model.set_attn_implementation(before)
        raise
    names = tuple(inspect.signature(model.forward).parameters)
    if not getattr(model, "_bringup_takes_lengths", False):
        model._bringup_takes_lengths = True
        model.register_forward_pre_hook(_Calls(names), with_kwargs=True)
    return model


def lengths_of(attention_mask: torch.Tensor) -> list[int]:
    """Return the lengths that `attention_mask` [B, S], of ones and zeros, means; on the host.

    Args:
        attention_mask: [B, S] of any dtype, on any device; ones, then zeros.

    Raises:
        BringupError: it has another shape, or padding that is not on the right.
    """
    import torch

    if attention_mask.dim() != 2:
        raise BringupError(
            f"lengths_of: expected a mask [batch, length], got {list(attention_mask.shape)}"
        )
    mask = attention_mask.detach().cpu().bool()
    lengths = mask.sum(1)
    wrong = (mask != (torch.arange(mask.shape[1]) < lengths.unsqueeze(1))).any(1).nonzero()
    if len(wrong):
        raise BringupError(
            f"lengths_of: sequence {int(wrong[0])} is not padded on the right alone: tokenize with "
            "padding_side='right'"
        )
    return [int(length) for length in lengths]


class _Calls:
    """What a prepared model may be called with."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def __call__(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = {**dict(zip(self._names, args, strict=False)), **kwargs}
        for name in _NOT_BESIDE_LENGTHS:
            if given.get(name) is not None:
                raise ValueError(
                    f"{type(model).__name__} takes lengths (use_lengths): leave {name} out and "
                    "give actual_seq_lengths"
                )
        if given.get("actual_seq_lengths") is None:
            raise ValueError(
                f"{type(model).__name__} takes lengths (use_lengths): call it with "
                "actual_seq_lengths, one int for each sequence"
            )
        if "use_cache" in self._names and "use_cache" not in given:
            return args, {**kwargs, "use_cache": False}
        return None


def _checked_kind(model: Any) -> str:
    """Return the attention implementation of a model that may be run."""
    from transformers import PreTrainedModel

    name = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        raise BringupError(f"use_lengths takes a model of transformers, got {name}")
    if model.training:
        raise BringupError(f"use_lengths: {name} is in training mode; call model.eval() first")
    if getattr(model.config, "is_encoder_decoder", False):
        raise BringupError(
            f"use_lengths: {name} is an encoder with a decoder: cross-attention has keys of other "
            "lengths than its rows; prepare model.get_encoder() alone"
        )
    if "attention_mask" not in inspect.signature(model.forward).parameters:
        raise BringupError(
            f"use_lengths: {name} takes no attention_mask: its sequences have no padding"
        )
    kind: str = model.config._attn_implementation
    if not kind.startswith(LENGTHS):
        return kind
    return "sdpa" if model._supports_sdpa else "eager"
