"""Kernels of drivers/sim_ops that compute much, on the simulated NPU, against cpu: matrix products
and attention, forward and backward.

The peer is torch as anybody calls it, with its defaults, on the same tensors; both sides have one
thread. A sample ends when the device is done. Times are the process's processor time: on a machine
that others use, the time on the wall is mostly the wait for the simulator's thread to be run; it is
the note. The ratios are what they are: torch calls MKL and oneDNN.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch

import bringup_sim_ops
from benchmarks._device_replay import replay_rows
from benchmarks._harness import Row, paired
from bringup import devices

SIZES = (128, 256, 512)
# Batch, heads, length, size of a head; causal.
ATTENTION = ((1, 4, 128, 64, False), (1, 8, 512, 64, False), (1, 8, 512, 64, True))
LEAST_NS = 2_000_000  # that a sample takes
Work = Callable[[list[torch.Tensor]], object]


def run(*, quick: bool = False) -> list[Row]:
    """The rows of this module."""
    device = devices.load_driver("sim").device_name
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    bringup_sim_ops.load()
    rounds = 3 if quick else 31
    try:
        return [
            *_products(device, rounds),
            *_attention(device, rounds),
            *replay_rows(device, rounds),
        ]
    finally:
        bringup_sim_ops.unload()
        torch.set_num_threads(threads)


def _products(device: str, rounds: int) -> Iterator[Row]:
    for n in SIZES:
        a, b = torch.randn(n, n), torch.randn(n, n)
        yield _row(f"mm {n} x {n} x {n}", lambda t: torch.mm(*t), [a, b], device, rounds)
    a, b = torch.randn(512, 256), torch.randn(1024, 256)
    bias = torch.randn(1024)
    yield _row(
        "linear 512 x 1024 x 256",
        lambda t: torch.nn.functional.linear(*t),
        [a, b, bias],
        device,
        rounds,
    )
    batch = torch.randn(16, 128, 64)
    yield _row(
        "bmm 16 x 128 x 128 x 64", lambda t: torch.bmm(t[0], t[0].mT), [batch], device, rounds
    )


def _attention(device: str, rounds: int) -> Iterator[Row]:
    for batch, heads, length, size, causal in ATTENTION:
        shape = (batch, heads, length, size)
        name = f"attention {batch} x {heads} x {length} x {size}{', causal' if causal else ''}"
        given = [torch.randn(shape) for _ in range(3)]

        def forward(tensors: list[torch.Tensor], causal: bool = causal) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=causal)

        def both(
            tensors: list[torch.Tensor], forward: Callable[..., torch.Tensor] = forward
        ) -> object:
            leaves = [t.detach().requires_grad_() for t in tensors]
            out = forward(leaves)
            return torch.autograd.grad(out, leaves, out.detach())

        yield _row(name, forward, given, device, rounds)
        yield _row(f"{name}, forward and backward", both, given, device, rounds)


def _row(name: str, work: Work, given: list[torch.Tensor], device: str, rounds: int) -> Row:
    there = [t.to(device) for t in given]
    module = getattr(torch, device)

    def ours() -> None:
        work(there)
        module.synchronize()

    def theirs() -> None:
        work(given)

    ours(), theirs()  # compiles
    wall, spent = [], []
    for _ in range(rounds):
        both = [_sample(call) for call in (ours, theirs)]
        wall.append((both[0][0], both[1][0]))
        spent.append((both[0][1], both[1][1]))
    note = f"by the clock on the wall {paired('', '', wall).ratio:.3g}"
    return paired(f"sim_ops, {name}", "on cpu", spent, note=note)


def _sample(call: Callable[[], object]) -> tuple[float, float]:
    """Nanoseconds of a call: on the wall, and of all of the process's threads."""
    calls = 1
    while True:
        start, spent = time.perf_counter_ns(), time.process_time_ns()
        for _ in range(calls):
            call()
        spent = time.process_time_ns() - spent
        if spent >= LEAST_NS:
            return (time.perf_counter_ns() - start) / calls, spent / calls
        calls *= 4
