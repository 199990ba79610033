"""Collectives on the simulated NPU in two processes, beside gloo's own on CPU tensors in the same.

Processor time is that of all threads of rank 0, gloo's included; a round takes both sides in turn.
The budget of a call is gloo's own time and 15 us, and two copies where memory is not seen.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks._harness import Row

BESIDE_NS = 15_000
SIZES = (16, 64 << 10, 1 << 20, 16 << 20)
QUEUED_US = 30_000
SLOW_LAYERS, SLOW_COPY_US = 8, 10_000
Clock = Callable[[], int]


def run(*, quick: bool = False) -> list[Row]:
    rows: list[Row] = []
    for seen, isolated in (("seen", "0"), ("isolated", "1")):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "benchmarks.distributed", folder, str(int(quick))]
            environment = os.environ | {"BRINGUP_SIM_ISOLATED": isolated}
            ranks = [subprocess.Popen([*command, str(rank)], env=environment) for rank in range(2)]
            codes = [rank.wait() for rank in ranks]
            if any(codes):
                raise RuntimeError("a rank of the benchmark failed: its error stands above")
            for values in json.loads(Path(folder, "rows.json").read_text()):
                rows.append(Row(**{**values, "name": f"{values['name']}, memory {seen}"}))
    return rows


def _sample(call: Callable[[], object], clock: Clock, calls: int) -> float:
    begin = clock()
    for _ in range(calls):
        call()
    return (clock() - begin) / calls


def _compared(
    ours: Callable[[], object], peer: Callable[[], object], clock: Clock, rounds: int, calls: int
) -> tuple[float, float]:
    """Return the medians of both in nanoseconds a call."""
    pairs = []
    for _ in range(rounds + 1):
        pairs.append((_sample(ours, clock, calls), _sample(peer, clock, calls)))
    mine, other = (statistics.median(side) for side in zip(*pairs[1:], strict=True))
    return mine, other


def _measure(folder: str, quick: bool, rank: int) -> None:
    import torch
    import torch.distributed as dist

    from bringup import devices
    from bringup.devices import sim

    torch.set_num_threads(1)
    devices.load_driver("sim")
    store = f"file://{folder}/store"
    dist.init_process_group(init_method=store, rank=rank, world_size=2)
    rows: list[dict[str, Any]] = []

    def add(name: str, mine: float, other: float, budget: float, peer: str) -> None:
        rows.append(
            {
                "name": name,
                "peer": peer,
                "ratio": mine / other,
                "ours_ns": mine,
                "peer_ns": other,
                "budget": budget,
            }
        )

    hidden = os.environ["BRINGUP_SIM_ISOLATED"] == "1"
    os.environ["BRINGUP_COLLECTIVES"] = "gloo"
    groups = {"the driver": dist.group.WORLD, "gloo": dist.new_group()}
    for size, (way, group) in itertools.product(SIZES, groups.items()):
        there, here = torch.zeros(size // 4, device="npu"), torch.zeros(size // 4)

        def reduce(tensor: Any = there, group: Any = group) -> None:
            dist.all_reduce(tensor, group=group)
            torch.accelerator.synchronize()

        pair = reduce, (lambda t=here: dist.all_reduce(t))
        calls = max(1, min(10, (1 << 20) // size))
        rounds = (20 if quick else 200) // (1 if size < 1 << 20 else 8)
        copies = 0.0
        if hidden:
            pinned = torch.zeros(size // 4).pin_memory()
            copies = 2 * _sample(lambda p=pinned, h=here: p.copy_(h), time.process_time_ns, 20)
        mine, other = _compared(*pair, time.process_time_ns, rounds, calls)
        budget = (other + BESIDE_NS + copies) / other
        add(f"all_reduce of {size} B by {way}, processor time", mine, other, budget, "gloo on cpu")
        mine, other = _compared(*pair, time.perf_counter_ns, rounds, calls)
        add(f"all_reduce of {size} B by {way}", mine, other, 1.3, "gloo on cpu")

    x, y = torch.zeros(1000, device="npu"), torch.ones(1000, device="npu")
    spent = []
    for _ in range(10):
        with sim.faults(copy_latency_us=QUEUED_US):
            x.copy_(y, non_blocking=True)
            begin = time.perf_counter_ns()
            work = dist.all_reduce(x, async_op=True)
            spent.append(time.perf_counter_ns() - begin)
            work.wait()
    add("call of an asynchronous one behind 30 ms", statistics.median(spent), 1e6, 1.0, "1 ms")
    for way, group in groups.items():
        step, backward, communication = _overlapped(group)
        mine, alone, moved = (
            statistics.median(_sample(call, time.perf_counter_ns, 1) for _ in range(5))
            for call in (step, backward, communication)
        )
        name = f"DDP backward with slow copies by {way}"
        add(name, mine, max(alone, moved), 1.2, "the longer of backward and communication")
    if not hidden:
        step, other_step = _step("npu"), _step("cpu")
        mine, other = _compared(step, other_step, time.process_time_ns, 5 if quick else 30, 1)
        sums = torch.tensor([mine, other], dtype=torch.float64)
        dist.all_reduce(sums)
        add("DDP step of a GPT, processor time of both", *sums.tolist(), 1.15, "the same on cpu")
    if rank == 0:
        Path(folder, "rows.json").write_text(json.dumps(rows))
    dist.destroy_process_group()


def _overlapped(group: Any) -> tuple[Callable[[], object], ...]:
    """Return a step of DDP whose backward copies for long, as long as its collectives copy what
    gloo is to see; the same without collectives; and these alone.
    """
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from bringup.devices import sim
    from bringup_sim_ops import load

    load()

    class SlowBackward(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(_: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return torch.empty_like(grad).copy_(grad, non_blocking=True)

    class Layer(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            return SlowBackward.apply(super().forward(x))

    model = DistributedDataParallel(
        nn.Sequential(*(Layer(64, 64) for _ in range(SLOW_LAYERS))).to("npu"),
        process_group=group,
        bucket_cap_mb=0.01,
        gradient_as_bucket_view=True,
    )
    batch = torch.ones(2, 64, device="npu")
    parts = [torch.ones(64 * 65, device="npu") for _ in range(SLOW_LAYERS)]

    def backward() -> None:
        loss = model(batch).sum()
        torch.accelerator.synchronize()
        with sim.faults(copy_latency_us=SLOW_COPY_US):
            loss.backward()
            torch.accelerator.synchronize()

    def alone() -> None:
        with model.no_sync():
            backward()

    def communication() -> None:
        with sim.faults(copy_latency_us=SLOW_COPY_US):
            for work in [dist.all_reduce(part, group=group, async_op=True) for part in parts]:
                work.wait()
            torch.accelerator.synchronize()

    for _ in range(3):  # DDP makes its buckets anew
        backward()
    return backward, alone, communication


def _step(device: str) -> Callable[[], object]:
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from bringup_sim_ops import load

    if device == "npu":
        load()
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
    model = DistributedDataParallel(nn.TransformerEncoder(layer, 2).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(8, 64, 64).to(device)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        torch.accelerator.synchronize()

    return step


if __name__ == "__main__":
    _measure(sys.argv[1], sys.argv[2] == "1", int(sys.argv[3]))
