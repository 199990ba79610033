"""Attention by its definition, one sequence after the other in float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor

UPPER = torch.triu(torch.ones(2048, 2048, dtype=torch.bool), 1)


def hidden(rows: int, keys: int, mode: int, before: int, after: int) -> Tensor:
    """[rows, keys], True where a row does not see a key, by torch_npu's `sparse_mode`."""
    place = torch.arange(rows)[:, None] + (keys - rows if mode in (3, 4) else 0)
    key = torch.arange(keys)[None]
    if mode in (2, 3):
        return key > place
    if mode == 4:
        return (key > place + after) | (key < place - before)
    return torch.zeros(rows, keys, dtype=torch.bool)


def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, hide: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One sequence: q [N, S, D], k and v [G, K, D]; the result, the largest scores and the sums of
    e^(score - largest), zeros, minus infinity and zero for a row that sees nothing.
    """
    group = q.shape[0] // k.shape[0]
    k, v = (x.double().repeat_interleave(group, 0) for x in (k, v))
    scores = (q.double() @ k.transpose(1, 2) * scale).masked_fill(hide, -math.inf)
    most = scores.amax(-1) if scores.shape[-1] else scores.new_full(scores.shape[:2], -math.inf)
    weights = (scores - most[..., None]).exp().nan_to_num(0.0)
    total = weights.sum(-1)
    result = (weights @ v) / total.clamp_min(1e-300)[..., None]
    return result, most, total


def to_heads(x: Tensor, layout: str, heads: int) -> Tensor:
    """[B, N, S, D]; TND as one batch."""
    if layout == "BSH":
        x = x.unflatten(-1, (heads, -1))
    return {
        "BSH": lambda: x.transpose(1, 2),
        "BSND": lambda: x.transpose(1, 2),
        "BNSD": lambda: x,
        "TND": lambda: x.transpose(0, 1)[None],
    }[layout]()


def from_heads(x: Tensor, layout: str) -> Tensor:
    """The inverse, contiguous."""
    if layout == "TND":
        return x[0].transpose(0, 1).contiguous()
    if layout == "BNSD":
        return x.contiguous()
    x = x.transpose(1, 2).contiguous()
    return x.flatten(2) if layout == "BSH" else x


def in_pages(tensors: list[Tensor], size: int, layout: str = "BNSD") -> tuple[list[Tensor], Tensor]:
    """Keys and values [B, G, K, D] in shuffled pages, [pages, G, size, D] or as `layout` says, and
    the table of pages. Rows and pages that nothing fills are NaN.
    """
    batch, _, keys, _ = tensors[0].shape
    each = -(-keys // size)
    order = torch.randperm(batch * each + 3)[: batch * each]
    found = []
    for x in tensors:
        padded = torch.full((*x.shape[:2], each * size, x.shape[3]), math.nan, dtype=x.dtype)
        padded[:, :, :keys] = x
        pages = torch.full((len(order) + 3, x.shape[1], size, x.shape[3]), math.nan, dtype=x.dtype)
        pages[order] = padded.unflatten(2, (each, size)).transpose(1, 2).flatten(0, 1)
        found.append(from_heads(pages, layout))
    return found, order.to(torch.int32).reshape(batch, each)
