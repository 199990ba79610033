"""Operators without a kernel of their own on the simulated NPU, against the same operators on cpu.

The fallback's own cost is the point, so tensors are small; host-visible memory, one thread.
"""

from __future__ import annotations

import torch

from benchmarks._harness import Row, compare
from bringup import devices


def run(*, quick: bool = False) -> list[Row]:
    device = devices.load_driver("sim").device_name
    rounds = 7 if quick else 61
    x, y = torch.randn(16), torch.randn(16)
    there, other = x.to(device), y.to(device)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            return [
                compare(
                    "fallback, unary (relu of 16)",
                    lambda: torch.relu(there),
                    lambda: torch.relu(x),
                    peer_name="torch.relu on cpu",
                    budget=1.5,
                    rounds=rounds,
                ),
                compare(
                    "fallback, binary (add of 16)",
                    lambda: torch.add(there, other),
                    lambda: torch.add(x, y),
                    peer_name="torch.add on cpu",
                    budget=1.7,
                    rounds=rounds,
                ),
            ]
    finally:
        torch.set_num_threads(threads)
