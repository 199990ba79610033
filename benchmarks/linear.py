"""Linear layers over frozen weights, packed, against torch: alone, and all of BERT's in a row.

The peer of float32 is the faster of `addmm` over a contiguous [k, n] and MKL's packed product,
which takes an opaque weight (see docs/design/kernels.md); of bfloat16 torch's linear in bfloat16;
of w8a8 `torch._int_mm`, which rounds, scales and adds nothing. The layers of BERT of MiniLM's shape
(42 MB) are also held against reading their weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from benchmarks._harness import Row, compare, interleave, row
from bringup import kernels

SHAPES = (
    (512, 512, 512),
    (64, 384, 1536),
    (256, 384, 1536),
    (16, 384, 1152),
    (16, 384, 384),
    (16, 384, 1536),
    (16, 1536, 384),
    (1, 512, 1376),
    (1, 512, 512),
    (1, 4096, 4096),
)
NARROW = ((512, 512, 512), (64, 384, 1536), (1, 512, 1376), (1, 4096, 4096))
BUDGET = 1.05
BERT = ((384, 1152), (384, 384), (384, 1536), (1536, 384))
LAYERS = 6

Call = Callable[[], object]


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _float32(m: int, k: int, n: int, threads: int, rounds: int) -> Row:
    x, weight, bias = torch.randn(m, k), torch.randn(n, k), torch.randn(n)
    panels, columns = kernels.pack_weight(weight), weight.t().contiguous()
    calls: dict[str, Call] = {
        "ours": lambda: kernels.packed_linear(x, panels, bias, -n % 16),
        "addmm": lambda: torch.addmm(bias, x, columns),
    }
    if torch.backends.mkl.is_available():
        opaque = torch.ops.mkl._mkl_reorder_linear_weight(weight, m)
        calls["MKL, packed"] = lambda: torch.ops.mkl._mkl_linear(x, opaque, weight, bias, m)
    samples = interleave(calls, rounds=rounds)
    ours = samples.pop("ours")
    peer = min(samples, key=lambda name: min(samples[name]))
    name = f"float32 {m} x {k} x {n}, {threads} threads"
    note = f"{2 * m * k * n / min(ours):.0f} GFLOP/s at best"
    return row(name, peer, ours, samples[peer], budget=BUDGET, note=note)


def _narrow(m: int, k: int, n: int, rounds: int) -> Iterator[Row]:
    x, weight, bias = torch.randn(m, k), torch.randn(n, k), torch.randn(n)
    narrow, (panels, scales) = (
        kernels.pack_weight(weight, torch.bfloat16),
        kernels.pack_weight_int8(weight),
    )
    given = [value.bfloat16() for value in (x, weight, bias)]
    whole = [(value * 20).to(torch.int8) for value in (x, weight)]
    columns = weight.t().contiguous()
    pairs: dict[str, tuple[Call, Call, str]] = {
        "bfloat16": (
            lambda: kernels.packed_linear(x, narrow, bias, -n % 16),
            lambda: torch.nn.functional.linear(*given),
            "linear, bfloat16",
        ),
        "int8": (
            lambda: kernels.packed_linear_int8(x, panels, scales, bias, -n % 16),
            lambda: torch.addmm(bias, x, columns),
            "addmm, float32",
        ),
        "w8a8": (
            lambda: kernels.packed_linear_w8a8(x, panels, scales, bias, -n % 16),
            lambda: torch._int_mm(whole[0], whole[1].t()) if m > 16 else torch.mm(x, columns),
            "_int_mm" if m > 16 else "mm, float32",
        ),
    }
    for form, (ours, peer, peer_name) in pairs.items():
        title = f"{form} {m} x {k} x {n}, 1 thread"
        yield compare(title, ours, peer, peer_name=peer_name, rounds=rounds)


def _bert(rows: int, rounds: int) -> Iterator[Row]:
    """All layers of the model, weights from memory."""
    weights = [torch.randn(n, k) for _ in range(LAYERS) for k, n in BERT]
    inputs = {k: torch.randn(rows, k) for k, _ in BERT}
    panels = [kernels.pack_weight(weight) for weight in weights]
    columns = [weight.t().contiguous() for weight in weights]
    together = torch.cat([weight.flatten() for weight in weights])

    def ours() -> None:
        for weight, packed in zip(weights, panels, strict=True):
            kernels.packed_linear(inputs[weight.shape[1]], packed)

    def torchs() -> None:
        for weight in columns:
            torch.mm(inputs[weight.shape[0]], weight)

    samples = interleave(
        {"ours": ours, "mm": torchs, "read": lambda: together.sum()}, rounds=rounds, calls=1
    )
    title = f"BERT's linear layers, {rows} rows, {torch.get_num_threads()} threads"
    yield row(title, "mm, contiguous", samples["ours"], samples["mm"])
    yield row(title, "a read of the weights", samples["ours"], samples["read"])


@torch.no_grad()
def run(quick: bool = False) -> list[Row]:
    """The rows of this module."""
    rounds = 3 if quick else 31
    rows: list[Row] = []
    for threads, (m, k, n) in itertools.product((1, torch.get_num_threads()), SHAPES):
        with _threads(threads):
            rows.append(_float32(m, k, n, threads, rounds))
    with _threads(1):
        for shape in NARROW:
            rows.extend(_narrow(*shape, rounds))
    for count in (1, 16, 64):
        rows.extend(_bert(count, rounds))
    return rows
