"""Operators over sequences of different length in one batch, registered when this is imported."""

from __future__ import annotations

import inspect

import torch

from bringup import ops
from bringup.kernels._sources import kernel_source

attention = ops.kernel_op(
    "bringup::attention(Tensor q, Tensor k, Tensor v, int[] actual_seq_lengths, float scale, "
    "bool causal=False, int window=0, int[]? actual_seq_lengths_kv=None) -> Tensor",
    source=kernel_source("attention"),
    dtypes={"SCALAR": "q"},
    layout="strided",
    outputs=ops.empty("q.shape[0]", "q.shape[2]", "q.shape[1]", "v.shape[3]", dtype="q"),
    checks=(
        ops.dtype("q", torch.float32, torch.float64, torch.bfloat16, torch.float16),
        ops.same_dtype("q", "k", "v"),
        ops.shape("k", "q.shape[0]", "k.shape[1]", "k.shape[2]", "q.shape[3]"),
        ops.shape("v", "q.shape[0]", "k.shape[1]", "k.shape[2]", "v.shape[3]"),
    ),
)

mean_pool = ops.kernel_op(
    "bringup::mean_pool(Tensor x, int[] actual_seq_lengths, bool normalize=False) -> Tensor",
    source=kernel_source("mean_pool"),
    dtypes={"SCALAR": "x"},
    outputs=ops.empty("x.shape[0]", "x.shape[2]", dtype="x"),
    checks=(ops.dtype("x", torch.float32, torch.float64),),
)

_DESCRIPTIONS = {
    attention: """softmax(q k^T * scale) v over sequences of different length in one batch. No row
        looks behind the end of its sequence; the rows behind it come out as zeros, and so does a
        row that sees no key. Sums are kept in float32 (float64 for float64) and rounded once. A
        sequence has the same bits alone and in a batch, however long the padding, and on one thread
        and several.

        Args:
            q: queries [B, H, S, D], float32, float64, bfloat16 or float16, any strides.
            k: keys [B, G, K, D] of the same dtype, H a multiple of G: head h reads the keys of head
                h // (H // G).
            v: values [B, G, K, E], of the same dtype.
            actual_seq_lengths: for each of the B sequences, how many of its S rows count.
            scale: of the scores; 1 / sqrt(D) for the usual attention.
            causal: a row sees keys up to its own position only.
            window: a row sees keys fewer than this many positions away only, itself counted
                (transformers' `sliding_window`); 0 for all.
            actual_seq_lengths_kv: for each sequence, how many of its K keys count; None for
                `actual_seq_lengths`. The rows are the last ones of the keys (of n rows over m keys,
                row i has position i + m - n), as where a cache holds the former ones.

        Returns:
            [B, S, H, E], so that joining the heads costs nothing.

        Raises:
            ContractError: dtypes or shapes do not fit.
            KernelError: a length is none, H is no multiple of G, or causal rows outnumber keys.
        """,
    mean_pool: """The mean of the rows of each sequence: a sentence embedding out of token
        embeddings.

        Args:
            x: [B, S, D], float32 or float64.
            actual_seq_lengths: for each of the B sequences, how many of its S rows count.
            normalize: divide by the Euclidean norm, at least 1e-12.

        Returns:
            [B, D].
        """,
}
for _kernel, _text in _DESCRIPTIONS.items():
    _kernel.__doc__ = f"{_kernel.schema}\n\n{inspect.cleandoc(_text)}"
