"""Captured graphs: replay against eager and against a C loop, capture against eager, updates, runs.

Every replay row is one of chains of 1,000 calls, so its figures are per call (a mix of 5: of five
operators; the mix of 4: of one, its chain has 1,000 operators). The kernel's peer is
a C loop over the same compiled kernel with arguments packed before. An update's peer is one small
eager operator, the least that anything else would launch to pass a value. A run's peer is what it
does in one unit: the input copied in, a replay, the result copied out.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import torch
from torch import Tensor

from benchmarks._compiled_loops import LOOPS
from benchmarks._harness import Row, interleave, row
from bringup import _native, devices, graphs, jit, ops

LENGTH = 1000

KERNEL = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const float* x = static_cast<const float*>(static_cast<DLTensor*>(args[0])->data);
  const int64_t n = *static_cast<int64_t*>(args[1]);
  float* out = static_cast<float*>(static_cast<DLTensor*>(args[2])->data);
  for (int64_t i = 0; i < 4; ++i) out[i] = x[i] + n;
  return 0;
}
"""
LOOP = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t loop(bringup_kernel_fn kernel, const bringup_ctx* ctx, int64_t times) {
  float data[8] = {};
  int64_t shape = 4, stride = 1, n = 1;
  DLTensor x{data, {1, 0}, 1, {2, 32, 1}, &shape, &stride, 0}, out = x;
  out.data = data + 4;
  void* args[] = {&x, &n, &out};
  int32_t failed = 0;
  for (int64_t i = 0; i < times; ++i) failed |= kernel(args, 3, ctx);
  return failed;
}
"""


def _chain(
    step: Callable[[Tensor], Tensor], x: Tensor, steps: int = LENGTH
) -> Callable[[], Tensor]:
    def run() -> Tensor:
        y = x
        for _ in range(steps):
            y = step(y)
        return y

    return run


def _captured(
    run: Callable[[], Tensor], level: int | None = None
) -> tuple[graphs.CapturedGraph, Tensor]:
    graph = graphs.CapturedGraph(optimize=level)
    with graphs.capture(graph):
        output = run()
    graph.wait_for_functions()
    return graph, output


def _per_call(samples: list[float]) -> list[float]:
    return [sample / LENGTH for sample in samples]


def _capture_once(run: Callable[[], Tensor]) -> None:
    _captured(run)


def _operators() -> dict[str, tuple[Callable[[Tensor], Tensor], Tensor]]:
    square, other = torch.randn(16, 16), torch.randn(16, 16)
    weight, bias = torch.ones(16), torch.zeros(16)

    def mix(y: Tensor) -> Tensor:
        return torch.sub(torch.mul(torch.mm(torch.add(torch.relu(y), other), other), other), square)

    return {
        "mix of 4, 1x16": _small("cpu"),
        "relu [16]": (torch.relu, torch.randn(16)),
        "add 16x16": (lambda y: torch.add(y, other), square),
        "mm 16x16": (lambda y: torch.mm(y, other), square),
        "layer_norm 16x16": (
            lambda y: torch.nn.functional.layer_norm(y, (16,), weight, bias),
            square,
        ),
        "mix of 5": (mix, square),
    }


def _small(device: str) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    # Results stay finite: a function leaves those with NaN to torch's kernels.
    weight = (torch.randn(16, 16) / 4).to(device)
    short, line = torch.randn(1, 16).to(device), torch.randn(1, 16).to(device)
    return lambda y: torch.mul(torch.add(torch.relu(torch.mm(y, weight)), short), short), line


def _kinds() -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Operators of a matrix of 16 columns and one of the same shape, which may be expanded."""
    order = torch.tensor([3, 1, 0, 2, 3, 1, 0, 2])
    return {
        "add": torch.add,
        "sub": lambda x, y: torch.sub(x, y, alpha=2),
        "mul": torch.mul,
        "div": torch.div,
        "number": lambda x, y: x * 0.5,
        "maximum": torch.maximum,
        "relu": lambda x, y: torch.relu(x),
        "exp": lambda x, y: torch.exp(x),
        "tanh": lambda x, y: torch.tanh(x),
        "sigmoid": lambda x, y: torch.sigmoid(x),
        "gelu": lambda x, y: torch.nn.functional.gelu(x),
        "silu": lambda x, y: torch.nn.functional.silu(x),
        "clamp": lambda x, y: x.clamp(-1, 1),
        "where": lambda x, y: torch.where(x > y, x, y),
        "addcmul": lambda x, y: torch.addcmul(x, y, y),
        "copy": lambda x, y: x.clone(),
        "half": lambda x, y: x.half(),
        "promote": lambda x, y: x.double() + y.float(),
        "cat": lambda x, y: torch.cat((x, y)),
        "softmax": lambda x, y: torch.softmax(x, -1),
        "sum": lambda x, y: x.sum(-1, keepdim=True),
        "mean": lambda x, y: x.mean(-1, keepdim=True),
        "mm": lambda x, y: torch.mm(x, y.t()),
        "index": lambda x, y: x.index_select(0, order),
    }


def _mixed_row(rounds: int) -> Row:
    """Operators of all kinds, dtypes and layouts."""
    draw, kinds = Random(0), list(_kinds().values())
    calls = []
    for number in range(LENGTH):
        dtype = draw.choice([torch.float32, torch.bfloat16, torch.float64])
        x, y = torch.randn(8, 16, dtype=dtype), torch.randn(8, 16, dtype=dtype)
        layout = draw.randrange(3)
        if layout == 1:
            y = y[:1].expand(8, 16)
        elif layout == 2:
            x = x.t().contiguous().t()
        calls.append((kinds[number % len(kinds)], x, y))

    def run() -> Tensor:
        for kind, x, y in calls:
            result = kind(x, y)
        return result

    graph, _output = _captured(run)
    samples = interleave({"replay": graph.replay, "eager": run}, rounds=rounds, calls=1)
    replay, eager = (_per_call(samples[key]) for key in ("replay", "eager"))
    note = f"{len(graph.nodes)} nodes, of which {sum(n.level > 0 for n in graph.nodes)} at level 1"
    return row("replay 24 kinds, 8x16", "eager", replay, eager, budget=1 / 5, note=note)


def _operator_rows(rounds: int) -> list[Row]:
    rows = []
    for name, (step, x) in _operators().items():
        is_small = name == "mix of 4, 1x16"
        run = _chain(step, x, LENGTH // 4 if is_small else LENGTH)
        graph, _output = _captured(run)
        samples = interleave({"replay": graph.replay, "eager": run}, rounds=rounds, calls=1)
        replay, eager = (_per_call(samples[key]) for key in ("replay", "eager"))
        budget = 1 / 8 if is_small else 0.5
        rows.append(row(f"replay {name}", "eager", replay, eager, budget=budget))
        if is_small:
            rows.append(_level_2_row(name, run, rounds, 1 / 14))
        # Apart, since a capture leaves the caches to the next replay as it needs them itself.
        samples = interleave(
            {"capture": lambda run=run: _capture_once(run), "eager": run}, rounds=rounds, calls=1
        )
        capture, eager = (_per_call(samples[key]) for key in ("capture", "eager"))
        rows.append(row(f"capture {name}", "eager", capture, eager, budget=4.0))
    return rows


def _level_2_row(
    name: str,
    run: Callable[[], Tensor],
    rounds: int,
    budget: float,
    wait: Callable[[], None] = lambda: None,
) -> Row:
    graph, _output = _captured(run, 2)
    calls = {"replay": lambda: (graph.replay(), wait()), "eager": lambda: (run(), wait())}
    samples = interleave(calls, rounds=rounds, calls=1)
    replay, eager = (_per_call(samples[key]) for key in ("replay", "eager"))
    return row(f"replay {name}, level 2", "eager", replay, eager, budget=budget)


def _npu_row(rounds: int) -> Row:
    devices.load_driver("sim")
    run = _chain(*_small("npu"), LENGTH // 4)
    return _level_2_row("mix of 4, 1x16 (npu)", run, rounds, 1 / 8, torch.npu.synchronize)


def _large_rows(rounds: int) -> list[Row]:
    """16 pointwise operators on a million elements, with two threads, at level 2."""
    x, function = torch.randn(1 << 20), next(one for one in LOOPS if one.name == "16 pointwise")
    torch.set_num_threads(2)
    try:
        graph, _output = _captured(lambda: function.function(x), 2)
        made = torch.compile(function.function)
        calls = {"replay": graph.replay, "eager": lambda: function.function(x)}
        samples = interleave({**calls, "Inductor": lambda: made(x)}, rounds=rounds, calls=1)
    finally:
        torch.set_num_threads(1)
    name = "replay 16 pointwise, 1M, two threads, level 2"
    return [
        row(name, peer, samples["replay"], samples[peer], budget=1.05)
        for peer in ("eager", "Inductor")
    ]


def _kernel_rows(rounds: int) -> list[Row]:
    source = jit.Source(text=KERNEL, name="plus.cpp")
    plus = ops.kernel_op(
        "bench_replay::plus(Tensor x, int n) -> Tensor", source=source, outputs=ops.empty_like("x")
    )
    x = torch.zeros(4)
    chain = _chain(lambda y: plus(y, 1), x)
    graph, _output = _captured(chain)
    kernel = _native.core().kernel_address(jit.compile(source).kernel_id)
    library = ctypes.CDLL(
        str(jit.compile(jit.Source(text=LOOP, name="loop.cpp", entry="loop")).path)
    )
    library.loop.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    samples = interleave(
        {"replay": graph.replay, "loop": lambda: library.loop(kernel, None, LENGTH)}, rounds=rounds
    )
    ours, peer = _per_call(samples["replay"]), _per_call(samples["loop"])
    over = sorted(a - b for a, b in zip(ours, peer, strict=True))[len(ours) // 2]
    rows = [row("replay C kernel", "C loop", ours, peer, note=f"{over:.1f} ns over it, budget 10")]
    samples = interleave(
        {"capture": lambda: _capture_once(chain), "eager": chain}, rounds=rounds, calls=1
    )
    captures, eager = _per_call(samples["capture"]), _per_call(samples["eager"])
    rows.append(row("capture kernel operator", "eager", captures, eager, budget=8.0))
    return rows + _update_rows(graph, x, rounds)


def _update_rows(graph: graphs.CapturedGraph, x: Tensor, rounds: int) -> list[Row]:
    values = iter(range(1 << 62))
    assert graph._content is not None
    native = graph._content.table.update
    samples = interleave(
        {
            "equal": lambda: graph.update({"plus.7.n": 1}),
            "changed": lambda: graph.update({"plus.8.n": next(values)}),
            "native": lambda: native({"plus.9.n": next(values)}),
            "eager": lambda: torch.add(x, x),
        },
        rounds=rounds,
    )
    return [
        row("update, equal", "torch.add", samples["equal"], samples["eager"]),
        row("update, changed", "torch.add", samples["changed"], samples["eager"]),
        row("update, changed, native", "torch.add", samples["native"], samples["eager"]),
    ]


def _beside_rows(rounds: int) -> list[Row]:
    """What the caller of an update waits for while the device is in the middle of a replay."""
    devices.load_driver("sim")
    plus = ops.kernel_op(
        "bench_replay::plus_npu(Tensor x, int n) -> Tensor",
        source=jit.Source(text=KERNEL, name="plus_npu.cpp"),
        outputs=ops.empty_like("x"),
        kind="device",
    )
    x, wide = torch.zeros(4, device="npu"), torch.ones(1024, 1024, device="npu")
    graph, _ = _captured(lambda: (wide @ wide, plus(x, 1))[1])

    def replay(asked: int = 0) -> tuple[float, float]:
        start = time.perf_counter_ns()
        graph.replay()
        if asked:
            start = time.perf_counter_ns()
            graph.update({"**.n": asked})
        asking = time.perf_counter_ns() - start
        torch.npu.synchronize()
        return asking, time.perf_counter_ns() - start

    samples: dict[str, list[float]] = {"update": [], "replay": []}
    for asked in range(2, rounds + 3):
        samples["update"].append(replay(asked)[0])
        samples["replay"].append(replay()[1])
    waits = sorted(samples["update"][1:])[rounds // 2] / 1000
    return [
        row(
            "update beside a replay (npu)",
            "the replay",
            samples["update"][1:],
            samples["replay"][1:],
            note=f"the caller waits {waits:.0f} us, budget 50 us",
        )
    ]


def _run_rows(rounds: int) -> list[Row]:
    layer, x, fresh = torch.nn.Linear(16, 16), torch.randn(4, 16), torch.randn(4, 16)
    graph, y = _captured(lambda: layer(x))

    def copies() -> Tensor:
        x.copy_(fresh)
        graph.replay()
        return y.clone()

    samples = interleave(
        {"run": lambda: graph.run(fresh), "replay": graph.replay, "copies": copies}, rounds=rounds
    )
    pairs = zip(samples["run"], samples["copies"], strict=True)
    over = sorted(ours - peer for ours, peer in pairs)[rounds // 2]
    note = f"{over / 1000:.1f} us over it, budget 15 us"
    return [
        row("run, one layer", "copies and replay", samples["run"], samples["copies"], note=note),
        row("run, one layer", "bare replay", samples["run"], samples["replay"]),
    ]


@torch.no_grad()
def run(*, quick: bool = False) -> list[Row]:
    """The rows; one intra-op thread, because what is measured is the cost around the kernels."""
    rounds = 5 if quick else 21
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    former = os.environ.get("BRINGUP_CACHE_DIR")
    try:
        with tempfile.TemporaryDirectory() as cache:
            os.environ["BRINGUP_CACHE_DIR"] = str(Path(cache))
            return [
                *_kernel_rows(rounds),
                *_beside_rows(rounds),
                *_run_rows(rounds),
                *_operator_rows(rounds),
                _npu_row(rounds),
                _mixed_row(rounds),
                *_large_rows(rounds),
            ]
    finally:
        torch.set_num_threads(threads)
        if former is None:
            os.environ.pop("BRINGUP_CACHE_DIR", None)
        else:
            os.environ["BRINGUP_CACHE_DIR"] = former
