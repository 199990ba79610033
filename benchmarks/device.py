"""The simulated NPU against cpu in one process: small operators, a training step, copies.

Everything runs the CPU's kernels over host-visible memory, or over copies (a process of its own,
BRINGUP_SIM_ISOLATED=1), so a ratio is what the device costs. One thread.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable

import torch

from benchmarks._harness import Row, compare
from bringup import devices

_MIB = 1 << 20
# 0.9 of memcpy's speed.
_COPY_BUDGET = 1 / 0.9


def run(*, quick: bool = False) -> list[Row]:
    device = devices.load_driver("sim").device_name
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rounds = 7 if quick else 61
    try:
        return [
            *_operators(device, rounds),
            _training_step(device, max(rounds // 3, 3)),
            *_copies(device, rounds),
            *_without_visible_memory(quick=quick),
        ]
    finally:
        torch.set_num_threads(threads)


def _operators(device: str, rounds: int) -> list[Row]:
    module = getattr(torch, device)

    def against_cpu(
        name: str, work: Callable[[torch.Tensor], object], size: int, budget: float | None
    ) -> Row:
        here = torch.randn(size)
        there = here.to(device)
        return compare(
            name,
            lambda: work(there),
            lambda: work(here),
            peer_name="on cpu",
            budget=budget,
            rounds=rounds,
        )

    one = torch.ones(1)
    with torch.no_grad():
        return [
            against_cpu("device, item()", lambda x: x.item(), 1, 5),
            against_cpu("device, add of 1", lambda x: x + x, 1, 1.5),
            against_cpu("device, add of 1,000", lambda x: x + x, 1_000, None),
            against_cpu("device, add of 1,000,000", lambda x: x + x, 1_000_000, None),
            against_cpu("device, relu of 1,000", torch.relu, 1_000, 1.5),
            against_cpu("device, empty_like of 1,000", torch.empty_like, 1_000, None),
            compare(
                "device, synchronize() with nothing to wait for",
                module.synchronize,
                lambda: one + one,
                peer_name="add of 1 on cpu",
                rounds=rounds,
            ),
        ]


def _training_step(device: str, rounds: int) -> Row:
    def step(where: str) -> Callable[[], object]:
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
        model = torch.nn.Sequential(layer, torch.nn.Linear(64, 10)).to(where)
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.randn(8, 32, 64, device=where)
        target = torch.randint(0, 10, (8 * 32,), device=where)

        def once() -> None:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), target)
            loss.backward()
            optimizer.step()

        return once

    return compare(
        "device, a training step (transformer layer, AdamW)",
        step(device),
        step("cpu"),
        peer_name="on cpu",
        budget=1.3,
        rounds=rounds,
    )


def _copies(device: str, rounds: int) -> list[Row]:
    module = getattr(torch, device)
    rows = []
    for size, repeats, label in (
        (_MIB, 16, "16 copies of 1 MiB"),
        (64 * _MIB, 1, "copy of 64 MiB"),
    ):
        pageable = torch.ones(size, dtype=torch.uint8)
        target = torch.zeros(size, dtype=torch.uint8)
        pinned = torch.ones(size, dtype=torch.uint8).pin_memory()
        there = torch.ones(size, dtype=torch.uint8, device=device)
        other = torch.ones(size, dtype=torch.uint8, device=device)
        directions = {
            "host to device": (there, pageable),
            "device to host": (pageable, there),
            "pinned to device": (there, pinned),
            "device to pinned": (pinned, there),
            "device to device": (other, there),
        }
        for name, (to, source) in directions.items():

            def ours(
                to: torch.Tensor = to, source: torch.Tensor = source, repeats: int = repeats
            ) -> None:
                waits = any(end.is_cpu and not end.is_pinned() for end in (to, source))
                for _ in range(repeats):
                    to.copy_(source, non_blocking=not waits)
                module.synchronize()

            def memcpy(
                to: torch.Tensor = target, source: torch.Tensor = pageable, repeats: int = repeats
            ) -> None:
                for _ in range(repeats):
                    ctypes.memmove(to.data_ptr(), source.data_ptr(), to.nbytes)

            rows.append(
                compare(
                    f"device, {label}, {name}",
                    ours,
                    memcpy,
                    peer_name="memcpy",
                    budget=_COPY_BUDGET,
                    rounds=max(rounds // (1 if size == _MIB else 4), 3),
                )
            )
    return rows


def _without_visible_memory(*, quick: bool) -> list[Row]:
    command = [sys.executable, "-m", "benchmarks.device", *(["--quick"] if quick else [])]
    environment = {**os.environ, "BRINGUP_SIM_ISOLATED": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [Row(**values) for values in json.loads(done.stdout)]


def _isolated_rows(*, quick: bool) -> list[Row]:
    info = devices.load_driver("sim")
    assert not info.host_visible
    torch.set_num_threads(1)
    here, here_too = torch.randn(1_000_000), torch.randn(1_000_000)
    there, there_too = here.to(info.device_name), here_too.to(info.device_name)
    return [
        compare(
            "device, add of 1,000,000, memory that the host cannot see",
            lambda: there + there_too,
            lambda: here + here_too,
            peer_name="on cpu",
            budget=5,
            rounds=5 if quick else 61,
        )
    ]


if __name__ == "__main__":
    measured = _isolated_rows(quick="--quick" in sys.argv)
    fields = ("name", "peer", "ratio", "ours_ns", "peer_ns", "budget", "note")
    print(json.dumps([{field: getattr(row, field) for field in fields} for row in measured]))
