"""Run all of CUDA that the kit has on a machine with an NVIDIA GPU, and write the table of
docs/devices/cuda.md. Ten minutes at most.

    python tools/cuda_on_hardware.py table.md [--only STEP]...

The environment has the kit, `bringup[cuda]`, drivers/cuda, pytest, and torch with CUDA for what
runs beside torch's own (with a CPU build those steps are skipped). Each step is a process of its
own with a time limit, and a row, also where it fails. Exit code: 0 if no step failed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bringup import devices

_ROOT = Path(__file__).resolve().parents[1]
_SECONDS = 570

_BEGIN = """
import json, sys, time
import torch
from bringup import devices, graphs, jit, ops

def source(name, text):
    return jit.Source(name=f"{name}.cu", text=text, kind="device")

def least(call, wait, rounds=30):
    best = float("inf")
    for _ in range(rounds):
        wait()
        begin = time.perf_counter()
        call()
        wait()
        best = min(best, time.perf_counter() - begin)
    return best

TWICE = '''extern "C" __global__ void twice(float* out, const float* x, long long n) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) out[i] = 2 * x[i];
}'''
# Each block of a cluster adds what its neighbour has in shared memory; then all blocks wait for
# each other, and each adds all.
TOGETHER = '''#include <cooperative_groups.h>
namespace groups = cooperative_groups;
extern "C" __global__ void together(float* out, float* parts, const float* x) {
  extern __shared__ float mine[];
  auto cluster = groups::this_cluster();
  const int last = %d;
  mine[last] = x[blockIdx.x];
  cluster.sync();
  const float* theirs = cluster.map_shared_rank(mine, cluster.block_rank() ^ 1);
  parts[blockIdx.x] = mine[last] + 100 * theirs[last];
  cluster.sync();
  groups::this_grid().sync();
  float all = 0;
  for (unsigned i = 0; i < gridDim.x; ++i) all += parts[i];
  out[blockIdx.x] = all;
}'''

def twice():
    return ops.kernel_op(
        "bringup_hardware::twice(Tensor x) -> Tensor", source=source("twice", TWICE),
        entry="twice", args="ptr(out, float32), ptr(x), numel(x)",
        grid="(numel(x) + 255) // 256", block=256, outputs=ops.empty_like("x"))

def together(shared, **more):
    return ops.kernel_op(
        "bringup_hardware::together(Tensor x) -> (Tensor, Tensor)",
        source=source("together", TOGETHER % (shared // 4 - 1)), entry="together",
        args="ptr(out0, float32), ptr(out1, float32), ptr(x, float32)", grid="numel(x)", block=1,
        shared=shared, cluster=2, cooperative=True,
        outputs=(ops.empty_like("x"), ops.empty_like("x")))

def sums(device):
    x = torch.arange(8.0, device=device)
    with torch.no_grad():
        operator = together(100 * 1024)
        totals, parts = operator(x)
        expected = [v + 100 * (v + 1 - v % 2 * 2) for v in range(8)]
        assert parts.tolist() == expected, parts
        assert totals.tolist() == [sum(expected)] * 8, totals
    return "clusters of 2, a wait of the whole grid, 100 KiB of shared memory: as computed by hand"
"""

PROGRAMS = {
    "operator": """
devices.load_driver("cuda")
double, x = twice(), torch.arange(1000.0, device="nv")
with torch.Stream("nv"):
    assert torch.equal(double(x).cpu(), 2 * x.cpu())
graph = graphs.CapturedGraph()
with graphs.capture(graph):
    y = double(x)
x.add_(1)
graph.replay()
assert torch.equal(y.cpu(), 2 * x.cpu())
print("as on the CPU")
""",
    "beyond blocks": """
devices.load_driver("cuda")
print(sums("nv"))
""",
    "fills": """
import random
devices.load_driver("cuda")
kinds = (torch.uint8, torch.int16, torch.float32, torch.float64, torch.complex128)
picked = random.Random(0)
for number in range(1000):
    kind, count = picked.choice(kinds), picked.randrange(1, 5000)
    first = picked.randrange(count)
    value = picked.randrange(200) if kind is torch.uint8 else picked.randrange(-999, 999)
    here, there = torch.zeros(count, dtype=kind), torch.zeros(count, dtype=kind, device="nv")
    here[first:].fill_(value), there[first:].fill_(value)
    assert torch.equal(here, there.cpu()), (number, kind, count, first, value)
print("1,000 of random sizes, places and dtypes: as on the CPU")
""",
    "failing kernel": """
devices.load_driver("cuda")
wild = ops.kernel_op(
    "bringup_hardware::wild(Tensor x) -> Tensor", entry="wild", grid=1, block=1,
    source=source("wild", 'extern "C" __global__ void wild(float* out) { *(float*)8 = 1; }'),
    args="ptr(out, float32)", outputs=ops.empty_like("x"))
try:
    wild(torch.ones(1, device="nv"))
except Exception as error:
    assert "bringup_hardware::wild" in str(error) and "CUDA_ERROR" in str(error), error
    print("the launch raises, and names the operator:", str(error).splitlines()[0][:80])
else:
    raise AssertionError("no error")
""",
    "GPT": """
devices.load_driver("cuda")

def losses(device):
    step, times = trainer(device), []
    found = []
    for _ in range(5):
        begin = time.perf_counter()
        found.append(step().item())
        times.append(time.perf_counter() - begin)
    return found, 1e3 * min(times)

(ours, ms), (host, host_ms) = losses("nv"), losses("cpu")
assert ours == host, (ours, host)
print(f"losses equal the CPU's to the bit; a step takes {ms:.0f} ms, on the CPU {host_ms:.0f} ms")
""",
    "replay": """
devices.load_driver("cuda")
double = twice()
for size in (16, 1 << 20):
    x, graph = torch.zeros(size, device="nv"), graphs.CapturedGraph()
    with torch.no_grad():
        begin = time.perf_counter()
        with graphs.capture(graph):
            y = x
            for _ in range(1000):
                y = double(y)
        capture = time.perf_counter() - begin
        replay = least(graph.replay, torch.nv.synchronize)
        calls = least(lambda: [double(x) for _ in range(1000)], torch.nv.synchronize)
    line = f"{size} floats: a replay takes {1e3 * replay:.2f} ms, a call {1e3 * calls:.2f} us, "
    line += f"the capture {1e3 * capture:.0f} ms"
    if torch.cuda.is_available():
        z, theirs = torch.zeros(size, device="cuda"), torch.cuda.CUDAGraph()
        begin = time.perf_counter()
        with torch.cuda.graph(theirs):
            y = z
            for _ in range(1000):
                y = y * 2.0
        capture = time.perf_counter() - begin
        replay = least(theirs.replay, torch.cuda.synchronize)
        calls = least(lambda: [z * 2.0 for _ in range(1000)], torch.cuda.synchronize)
        line += f"; torch's CUDAGraph of `y * 2.0` {1e3 * replay:.2f} ms, {1e3 * calls:.2f} us, "
        line += f"{1e3 * capture:.0f} ms"
    print(line, end=". ")
""",
    "torch's CUDA tensors": """
assert torch.cuda.is_available(), "skipped: this torch has no CUDA"
double, x = twice(), torch.arange(1000.0, device="cuda")
for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
    with torch.cuda.stream(stream):
        assert torch.equal(double(x), 2 * x)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = double(x)
x.add_(1)
graph.replay()
assert torch.equal(y, 2 * x)
last = torch.cuda.device_count() - 1
assert torch.equal(double(x.to(last)), 2 * x.to(last))
print(f"in streams, captured, replayed, on device {last}: torch's numbers;", sums("cuda"))
""",
}  # fmt: skip


class Step(NamedTuple):
    """A row of the table: a command, and what it may take."""

    name: str
    command: tuple[str, ...]
    seconds: float
    variables: tuple[tuple[str, str], ...] = ()


def program_of(name: str) -> str:
    """Return the program of a step."""
    gpt = (_ROOT / "tests" / "gpt_program.py").read_text().split('"""')[3]
    return _BEGIN + (gpt if name == "GPT" else "") + PROGRAMS[name]


def steps_in(folder: Path) -> list[Step]:
    """Return what runs in `folder`: each with its command and the seconds that it may take."""
    kit = (sys.executable, "-m", "bringup")
    blocking = (("BRINGUP_LAUNCH_BLOCKING", "1"),)
    programs = []
    for name in PROGRAMS:
        file = folder / f"step_{name.replace(' ', '_')}.py"
        file.write_text(program_of(name))
        variables = blocking if name == "failing kernel" else ()
        programs.append(Step(name, (sys.executable, str(file)), 90, variables))
    conformance = ("conformance", "--driver", "cuda", "--seconds", "20", "--workers", "4")
    return [
        Step("driver check", (*kit, "driver", "check", "cuda"), 100),
        *programs,
        Step("tests/cuda", (sys.executable, "-m", "pytest", "-q", "-n0", "tests/cuda"), 120),
        Step("conformance, level 1", (*kit, *conformance, "--level", "1"), 100),
        Step("conformance, operators", (*kit, *conformance, "--level", "2", "--every", "20"), 100),
    ]


def _run(step: Step, left: float) -> tuple[str, str]:
    """Return "holds", "fails" or "skipped", and the last line that says what came of it."""
    if left <= 0:
        return "skipped", "no time was left"
    environment, limit = {**os.environ, **dict(step.variables)}, min(step.seconds, left)
    started = subprocess.Popen(
        step.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=_ROOT,
        env=environment, start_new_session=True,
    )  # fmt: skip
    try:
        said, failure = started.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)  # with the workers that it has started
        started.communicate()
        return "fails", f"no end within {limit:.0f} s"
    held = started.returncode == 0
    lines = [line.strip() for line in (said if held else failure or said).splitlines()]
    told = next(filter(None, reversed(lines)), f"exit status {started.returncode}")
    return "holds" if held else "skipped" if "skipped: " in told else "fails", told


def _machine() -> str:
    """Return the line above the table. Exits where the driver has no device."""
    found = devices.describe_driver(devices.driver_library("cuda"))
    if found.failure:
        sys.exit(f"no GPU for the driver: {found.failure}")
    one, torch = found.devices[0], importlib.metadata.version("torch")
    counted = f"{found.device_count} x {one.name} ({one.arch}, {one.driver_version})"
    return f"{counted}, torch {torch}, {time.strftime('%Y-%m-%d')}:"


def main() -> int:
    """How many steps failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("--only", action="append", default=[])
    asked = parser.parse_args()
    end = time.monotonic() + _SECONDS
    rows = [_machine(), "", "| what | result |", "|---|---|"]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for step in steps_in(Path(folder)):
            if asked.only and step.name not in asked.only:
                continue
            begin = time.monotonic()
            outcome, told = _run(step, end - begin)
            failed += outcome == "fails"
            text = told.replace("|", "\\|")
            rows.append(f"| {step.name} | {outcome}: {text} ({time.monotonic() - begin:.0f} s) |")
            print(rows[-1], flush=True)
            asked.table.write_text("\n".join(rows) + "\n")
    return failed


if __name__ == "__main__":
    sys.exit(min(main(), 1))
