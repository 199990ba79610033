"""Rows: torch.compile with its default backend on the simulated NPU, against the same on cpu.

Ours is code of the kit's generator, the peer's Inductor's C++; both sides have one thread, and a
sample ends when the device is done. A figure is the least time of all rounds by the least of the
peer's: what a machine that others use adds to both is no part of it. Beside the shapes that budgets
are for, every run draws two odd ones. First calls are processes of their own, with caches of their
own: empty ones, and those that the process before has left.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tests.gpt_program import GPT

from benchmarks._compiled_loops import LOOPS, compiled, given, odd_shape, waited
from benchmarks._harness import Row, interleave, least
from bringup import devices
from bringup.compiler.inductor.launch import ENTRY, generated_kernel, language_of

_PEER = "Inductor C++ on cpu"
_LAUNCH_NS = 3_000
_FIRST_CALL = """
import sys, time, torch
from benchmarks.inductor import gpt_step
device = sys.argv[1]
torch.set_num_threads(1)
if device != "cpu":
    from bringup import devices
    devices.load_driver("sim")
step = gpt_step(device)
start = time.perf_counter_ns()
step()
print(time.perf_counter_ns() - start)
"""


def run(*, quick: bool = False) -> list[Row]:
    """The rows of this module."""
    device = devices.load_driver("sim").device_name
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = [*_loops(device, 15 if quick else 61), _launch(device)]
        rows.append(_gpt(device, 7 if quick else 61))
    finally:
        torch.set_num_threads(threads)
        torch._dynamo.reset()
    return rows if quick else [*rows, *_first_calls(device)]


def _loops(device: str, rounds: int) -> Iterator[Row]:
    for loop in LOOPS:
        for shape in (loop.shape, odd_shape(loop.shape), odd_shape(loop.shape)):
            torch._dynamo.reset()
            calls = {
                name: compiled(loop.function, given(loop, shape, place))
                for name, place in (("ours", device), ("peer", "cpu"))
            }
            size = " x ".join(map(str, shape))
            budget = 1.2 if shape == loop.shape else 1.5
            yield least(f"{loop.name} of {size}", calls, rounds, peer=_PEER, budget=budget)


def _launch(device: str) -> Row:
    """What a caller waits for while a kernel of one element is started."""
    place = torch.device(device, 0)
    parameters = ", ".join(f"BRINGUP_GLOBAL float* {name}" for name in ("x", "y", "out"))
    head = language_of(place).entry.format(name=ENTRY, parameters=parameters)
    text = f"{head} {{ out[0] = x[0] + y[0]; }}\n"
    kernel = generated_kernel("add_0", text, device=str(place), parameters="rrw", faults=[])
    x, y, out = (torch.ones(1, device=place) for _ in range(3))
    calls = {"ours": lambda: kernel(1, x, y, out), "peer": lambda: torch.add(x, y, out=out)}
    samples = {name: min(found) for name, found in interleave(calls, calls=20).items()}
    torch.get_device_module(device).synchronize()
    ours, peer = samples["ours"], samples["peer"]
    note = f"{ours / 1000:.2f} us, budget {_LAUNCH_NS / 1000:.0f} us"
    name = "launch of a generated kernel"
    return Row(name, "eager add", ours / peer, ours, peer, _LAUNCH_NS / peer, note)


def gpt_step(device: str) -> Callable[[], Any]:
    """Forward and backward of a GPT of two blocks, compiled, with its loss, at 4 x 128 words."""
    program: dict[str, Any] = {}
    exec(GPT, program)
    torch.manual_seed(0)
    model = program["GPT"](words=256, width=128, length=128).to(device)
    made = torch.compile(model)
    ids = torch.randint(256, (4, 128), generator=torch.Generator().manual_seed(1)).to(device)

    def step(ids: torch.Tensor) -> None:
        model.zero_grad()
        loss = torch.nn.functional.cross_entropy(made(ids).flatten(0, 1), ids.flatten())
        loss.backward()

    return waited(step, [ids])


def _gpt(device: str, rounds: int) -> Row:
    torch._dynamo.reset()
    calls = {name: gpt_step(place) for name, place in (("ours", device), ("peer", "cpu"))}
    name = "GPT of 2 blocks, forward and backward"
    return least(name, calls, rounds, peer=_PEER, budget=1.0)


def _first_calls(device: str) -> Iterator[Row]:
    times: dict[str, list[tuple[float, float]]] = {"cold": [], "second process": []}
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            for pairs in times.values():
                ours, theirs = (_first_call(one, Path(folder)) for one in (device, "cpu"))
                pairs.append((ours, theirs))
    for (name, pairs), budget in zip(times.items(), (0.5, 1.0), strict=True):
        ours, theirs = (min(side) for side in zip(*pairs, strict=True))
        yield Row(f"GPT, first call, {name}", _PEER, ours / theirs, ours, theirs, budget)


def _first_call(device: str, folder: Path) -> float:
    caches = {
        "BRINGUP_CACHE_DIR": str(folder / "bringup"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / device),
    }
    command = [sys.executable, "-c", _FIRST_CALL, device]
    environment = {**os.environ, **caches}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return float(done.stdout.split()[-1])
