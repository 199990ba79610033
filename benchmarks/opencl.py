"""Rows: the OpenCL driver on the machine's first device, against OpenCL from C and the CPU.

Each kind of memory is a process of its own, as a process has one driver. Not measured without a C
compiler and OpenCL.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks._harness import Row, compare, missing, paired

_ROOT = Path(__file__).parents[1]
_PACKAGE = _ROOT / "drivers" / "opencl" / "src"
_MIB = 1 << 20
_CALLS = 64  # in a sample: the queue holds them, and is waited for between samples
_FLAGS = ("-std=c11", "-O2", "-fPIC", "-shared", "-D_POSIX_C_SOURCE=200809L")


def _built(folder: Path) -> tuple[Path, Path]:
    """The driver and the peer in C."""
    from bringup._native import include_dir

    driver, peer = folder / "libocl.so", folder / "libpeer.so"
    sources = sorted(map(str, _PACKAGE.glob("*.c")))
    source = str(Path(__file__).parent / "csrc" / "opencl_peer.c")
    for output, files in ((driver, sources), (peer, [source])):
        command = ["cc", *_FLAGS, f"-I{include_dir()}", *files, "-o", str(output)]
        subprocess.run([*command, "-lOpenCL", "-lpthread"], check=True, capture_output=True)
    return driver, peer


def _copies(peer: Any, rounds: int) -> list[Row]:
    import torch

    bytes_ = 64 * _MIB
    host = torch.ones(bytes_ // 4)
    other, there = torch.empty_like(host), host.to("ocl")
    plain = partial(peer.peer_memcpy, other.data_ptr(), host.data_ptr(), bytes_)
    rows = []
    for name, call in (("to", partial(there.copy_, host)), ("from", partial(other.copy_, there))):

        def waited(call: Any = call) -> None:
            call()
            torch.ocl.synchronize()

        rows.append(
            compare(
                f"copy of 64 MiB {name} the device",
                waited,
                plain,
                peer_name="memcpy",
                budget=1 / 0.85,
                rounds=rounds,
                calls=1,
            )
        )
    return rows


def _enqueues(peer: Any, rounds: int) -> Row:
    import torch

    from bringup import devices

    kernel = devices.kernel("aten::add", expression="self + alpha * other")
    x, y = torch.ones(2, 16, device="ocl").unbind()
    x + y
    pairs = []
    for _ in range(rounds):
        torch.ocl.synchronize()
        begin = time.perf_counter_ns()
        for _ in range(_CALLS):
            x + y
        ours = time.perf_counter_ns() - begin
        torch.ocl.synchronize()
        begin = time.perf_counter_ns()
        peer.peer_enqueue(_CALLS)
        theirs = time.perf_counter_ns() - begin
        peer.peer_wait()
        pairs.append((ours / _CALLS, theirs / _CALLS))
    kernel.close()
    name = "enqueue of a native add of 16"
    return paired(name, "clEnqueueNDRangeKernel from C", pairs, budget=3)


def _fallback(peer: Any, memory: str, rounds: int) -> Row:
    import torch

    x, y = torch.ones(2, 16, device="ocl").unbind()
    a, b = torch.ones(2, 16).unbind()

    def ours() -> None:
        x + y
        torch.ocl.synchronize()

    fine = memory == "fine"
    return compare(
        f"add of 16 by the fallback, {memory}-grained memory",
        ours,
        partial(torch.add, a, b) if fine else peer.peer_small_copy,
        peer_name="cpu" if fine else "a copy of 64 bytes and its wait, from C",
        budget=3 if fine else 8,
        rounds=rounds,
    )


def _training_step(rounds: int) -> Row:
    """A small GPT's training step, in processor time: that of PoCL's workers, too."""
    import torch
    from tests.gpt_program import GPT

    import bringup_opencl
    from bringup import devices

    bringup_opencl.load()
    torch.set_num_threads(1)
    program: dict[str, Any] = {}
    exec(GPT, program)
    ours, theirs = program["trainer"]("ocl"), program["trainer"]("cpu")
    pairs = []
    with devices.fallback_policy("forbid"):
        for _ in range(rounds + 3):
            one = []
            for step in (ours, theirs):
                begin = time.process_time_ns()
                step()
                torch.ocl.synchronize()
                one.append(float(time.process_time_ns() - begin))
            pairs.append((one[0], one[1]))
    bringup_opencl.unload()
    name = "training step of a small GPT, processor time"
    return paired(name, "cpu", pairs[3:], budget=2.5)


def _compiled_loops(rounds: int) -> list[Row]:
    """torch.compile with its default backend, against the driver's own operators."""
    import torch

    import bringup_opencl
    from benchmarks._compiled_loops import LOOPS, compiled, given, waited
    from benchmarks._harness import least

    bringup_opencl.load()
    rows = []
    for loop in LOOPS:
        torch._dynamo.reset()
        tensors = given(loop, loop.shape, "ocl")
        calls = {
            "ours": compiled(loop.function, tensors),
            "peer": waited(loop.function, tensors),
        }
        budget = 0.5 if loop.kernels >= 3 else None
        name = f"compiled {loop.name} of {' x '.join(map(str, loop.shape))}"
        rows.append(least(name, calls, rounds, peer="eager", budget=budget))
    bringup_opencl.unload()
    return rows


def _measured(memory: str, driver: str, library: str, rounds: int) -> list[Row]:
    """The rows of one kind of memory, in this process."""
    sys.path.insert(0, str(_PACKAGE))
    import torch

    import bringup_opencl._target  # noqa: F401 - registers the target
    from bringup import devices

    devices.load_driver(driver)
    peer = ctypes.CDLL(library)
    peer.peer_memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    peer.peer_begin.argtypes = [ctypes.c_size_t, ctypes.c_void_p]
    space = torch.empty(16)
    if step := peer.peer_begin(_MIB, space.data_ptr()):
        raise RuntimeError(f"step {step} of the peer failed")
    rows = [_fallback(peer, memory, rounds)]
    if memory == "coarse":
        rows += [
            _enqueues(peer, rounds),
            *_copies(peer, max(5, rounds // 4)),
            _training_step(rounds),
            *_compiled_loops(rounds),
        ]
    return rows


def run(*, quick: bool = False) -> list[Row]:
    """The rows, of both kinds of memory."""
    rounds = 11 if quick else 61
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            driver, peer = _built(Path(folder))
        except (OSError, subprocess.CalledProcessError) as error:
            return [missing("opencl", "C", f"no OpenCL to build with: {error}")]
        for memory in ("coarse", "fine"):
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.opencl", memory, driver, peer, str(rounds)],
                env={**os.environ, "BRINGUP_OPENCL_MEMORY": memory, "PYTHONPATH": str(_ROOT)},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                rows.append(missing(f"opencl, {memory}", "C", done.stderr.strip()[-200:]))
                continue
            for one in json.loads(done.stdout.splitlines()[-1]):
                rows.append(Row(**{name: one[name] for name in Row.__dataclass_fields__}))
    return rows


if __name__ == "__main__":
    found = _measured(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
    print(json.dumps([one.as_dict() for one in found]))
