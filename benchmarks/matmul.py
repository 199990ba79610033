"""The GEMM family against `torch.mm`, on one thread, and what a variant costs to compile.

The ratios are what they are: torch calls MKL or oneDNN, which know the processor's matrix
instructions; ours is plain vectors, compiled from a template in about a tenth of a second.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks._harness import Row, compare
from bringup import kernels

TENTH_OF_A_SECOND_NS = 1e8
SHAPES = ((512, 512, 512), (64, 1024, 1024), (1, 1024, 1024), (129, 257, 1000))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _products(rounds: int) -> Iterator[Row]:
    for dtype, (m, n, k), layout in itertools.product(DTYPES, SHAPES, ("nn", "nt")):
        a = torch.randn(m, k).to(dtype)
        b = torch.randn(k, n).to(dtype) if layout == "nn" else torch.randn(n, k).to(dtype).t()
        yield compare(
            f"{str(dtype)[6:]} {m} x {n} x {k} {layout}",
            lambda a=a, b=b: kernels.basic_matmul(a, b),  # type: ignore[misc]
            lambda a=a, b=b: torch.mm(a, b),  # type: ignore[misc]
            peer_name="torch.mm",
            rounds=rounds,
        )


def _others(rounds: int) -> Iterator[Row]:
    a, b, bias = torch.randn(128, 768), torch.randn(3072, 768).t(), torch.randn(3072)
    batch, x = torch.randn(24, 128, 64), torch.randn(768)
    quantised = [
        torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((128, 768), (768, 768))
    ]
    pairs: dict[str, tuple[Callable[[], object], Callable[[], object], str]] = {
        "linear + gelu 128 x 3072 x 768": (
            lambda: kernels.matmul_bias_activation(a, b, bias, "gelu"),
            lambda: torch.nn.functional.gelu(torch.addmm(bias, a, b)),
            "addmm, gelu",
        ),
        "batched 24 x 128 x 128 x 64": (
            lambda: kernels.batched_matmul(batch, batch.mT),
            lambda: torch.bmm(batch, batch.mT),
            "torch.bmm",
        ),
        "gemv 3072 x 768": (lambda: kernels.gemv(b.t(), x), lambda: torch.mv(b.t(), x), "torch.mv"),
        "int8 128 x 768 x 768": (
            lambda: kernels.quant_matmul(*quantised, torch.ones(1)),
            lambda: torch._int_mm(*quantised),
            "torch._int_mm",
        ),
    }
    for name, (ours, peer, peer_name) in pairs.items():
        yield compare(name, ours, peer, peer_name=peer_name, rounds=rounds)


def _family(m: int, n: int, k: int) -> dict[str, Callable[[], object]]:
    """Quantised products and epilogues of one size; `gemm`, which they are held against, first."""
    a, b = torch.randn(m, k), torch.randn(k, n)
    int8_a, int8_b = (x.mul(30).to(torch.int8) for x in (a, b))
    fp8_a, fp8_b = (x.to(torch.float8_e4m3fn) for x in (a, b))
    fp4_a, fp4_b = (
        torch.randint(0, 256, size, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
        for size in ((m, k // 2), (n, k // 2))
    )
    int4_b = torch.randint(0, 256, (k, n // 2), dtype=torch.uint8)
    token, channel, bias, gate = torch.rand(m), torch.rand(n), torch.rand(n), torch.rand(m, n)
    of_a, of_b, of_blocks = (
        torch.rand(size) for size in ((m, k // 128), (k // 128, n), (k // 128, n // 128))
    )
    mx = [torch.ones(s).to(torch.float8_e8m0fnu) for s in ((m, k // 32), (k // 32, n))]
    ends = torch.tensor([m // 3, m])
    group: dict[str, Any] = {"block_a": (1, 128), "block_b": (128, 1)}
    scaled, swiglu = kernels.scaled_matmul, kernels.fused_matmul("silu(acc + bias) * gate")
    return {
        "gemm": lambda: kernels.gemm(a, b),
        "int8, per token and channel": lambda: scaled(int8_a, int8_b, token, channel),
        "int8, per group": lambda: scaled(int8_a, int8_b, of_a, of_b, **group),
        "int8, per block": lambda: scaled(
            int8_a, int8_b, of_a, of_blocks, block_a=(1, 128), block_b=(128, 128)
        ),
        "int8, groups of rows": lambda: scaled(
            int8_a, int8_b.expand(2, k, n), token, channel, group_list=ends
        ),
        "int8, groups of the depth": lambda: scaled(
            int8_a, int8_b, token, channel, group_list=ends, slices="depth"
        ),
        "w4a8": lambda: scaled(
            int8_a, kernels.dequantize(int4_b, packed="int4", out_dtype=torch.int8), token, channel
        ),
        "w8a16, float16 scales per group": lambda: scaled(
            a.half(), int8_b, None, of_b.half(), block_b=(128, 1)
        ),
        "e4m3, per group": lambda: scaled(fp8_a, fp8_b, of_a, of_b, **group),
        "MX e4m3": lambda: scaled(fp8_a, fp8_b, *mx),
        "MX e2m1": lambda: scaled(fp4_a, fp4_b.t(), *mx, out_dtype="float32"),
        "silu(acc + bias) * gate": lambda: swiglu(a, b, bias, gate),
        "dequantize of b, per group": lambda: kernels.dequantize(
            int8_b, of_b, block=(128, 1), out_dtype="bfloat16"
        ),
    }


def _families(rounds: int) -> Iterator[Row]:
    for m, n, k in ((512, 512, 512), (64, 1024, 1024)):
        calls = _family(m, n, k)
        gemm = calls.pop("gemm")
        for name, ours in calls.items():
            title = f"{name} {m} x {n} x {k}"
            yield compare(title, ours, gemm, peer_name="gemm", rounds=rounds, budget=2.0)


@contextmanager
def _empty_cache() -> Iterator[None]:
    name = "BRINGUP_CACHE_DIR"
    before = os.environ.get(name)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[name] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before


def _processor_ns() -> float:
    """Of this process and of the compilers it has waited for."""
    spent = os.times()
    children = spent.children_user + spent.children_system
    return time.process_time_ns() + children * 1e9


def _first_calls() -> Iterator[Row]:
    """Processor time of one variant of each operator, compiled, loaded and run; in no cache
    before.
    """
    a, b = torch.randn(40, 40).half(), torch.randn(40, 40).half()[::2, ::2]
    a = a[:20, :20]
    batch, int8 = a.expand(2, 20, 20), torch.ones(20, 20, dtype=torch.int8)
    calls: dict[str, Callable[[], object]] = {
        "basic_matmul": lambda: kernels.basic_matmul(a, b, "float32"),
        "batched_matmul": lambda: kernels.batched_matmul(batch, batch, "float32"),
        "matmul_bias_activation": lambda: kernels.matmul_bias_activation(a, b, a[0], "gelu"),
        "gemm": lambda: kernels.gemm(a, b, a),
        "gemv": lambda: kernels.gemv(b, a[0]),
        "quant_matmul": lambda: kernels.quant_matmul(int8, int8.t(), torch.ones(20)),
        "nz_matmul": lambda: kernels.nz_matmul(a, kernels.to_nz(b), n=20),
    }
    kernels.basic_matmul(torch.ones(1, 1), torch.ones(1, 1))  # the compiler has been looked at
    for name, call in calls.items():
        start = _processor_ns()
        call()
        spent = _processor_ns() - start
        ratio = spent / TENTH_OF_A_SECOND_NS
        title = f"first call of a variant of {name}"
        yield Row(title, "0.1 s", ratio, spent, TENTH_OF_A_SECOND_NS)


def run(quick: bool = False) -> list[Row]:
    """The rows of this module."""
    rounds = 3 if quick else 31
    with _one_thread(), _empty_cache():
        return [*_first_calls(), *_products(rounds), *_others(rounds), *_families(rounds)]
