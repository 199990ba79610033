"""Programs for the sweep of injected faults, and the sweep of one of them:

    python -m tests.sweeps.fault_programs PROGRAM FAULT STEP

runs the program once for each call that it makes of the driver (every STEP-th of them), makes that
call fail, and prints as JSON what was wrong afterwards: a result that is neither an error nor
right, an error that does not say what happened, or a device that is not as it was before.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bringup import devices, graphs, jit, ops

__all__ = ["FAULTS", "PROGRAMS"]

HANG_SECONDS = 100
SCALE = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<float, 1> x(args[0]), out(args[2]);
  const int64_t n = *static_cast<int64_t*>(args[1]);
  for (int64_t i = 0; i < x.size(0); ++i) out(i) = x(i) * n;
  return 0;
}
"""


def scale_operator() -> Callable[..., Tensor]:
    """`scale(x, n)`, x times n as device code, with a gradient."""
    scale = ops.kernel_op(
        "fault_sweep::scale(Tensor x, int n) -> Tensor",
        source=jit.Source(text=SCALE, name="scale.cpp"),
        outputs=ops.empty_like("x"),
        kind="device",
    )
    backward = ops.kernel_op(
        "fault_sweep::scale_backward(Tensor grad, int n) -> Tensor",
        source=jit.Source(text=SCALE, name="scale.cpp"),
        outputs=ops.empty_like("grad"),
        kind="device",
    )
    scale.register_autograd(
        lambda ctx, grad: (backward(grad.contiguous(), ctx.n), None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "n", inputs[1]),
    )
    return scale


_scale: Callable[..., Tensor] | None = None


def scale(x: Tensor, n: int) -> Tensor:
    """The operator, defined at its first call."""
    global _scale
    if _scale is None:
        _scale = scale_operator()
    return _scale(x, n)


def copies() -> Iterable[Tensor]:
    """In every direction, pinned and not, linear and not, between devices."""
    x = torch.arange(3000.0)
    there = x.to("npu")
    yield there.clone().cpu()
    pinned = x.pin_memory()
    yield pinned.to("npu", non_blocking=True) + 1
    back = torch.empty(3000).pin_memory()
    back.copy_(there, non_blocking=True)
    torch.npu.synchronize()
    yield back
    other = there.to("npu:1")
    yield other * 2
    grid = there.view(30, 100)
    yield grid.t().contiguous()
    grid[::2].copy_(x.view(30, 100)[1::2])
    yield grid
    yield there.half()
    yield there[5].item() * torch.ones(1)
    there.resize_(4000)[3000:] = 1
    yield there


def fallbacks() -> Iterable[Tensor]:
    """Operators that run on the host: views, writes, results of their own, lists."""
    x = torch.arange(24.0, device="npu").view(4, 6)
    y = torch.ones(6, 4, device="npu")
    yield x @ y
    x.add_(1)
    yield x
    out = torch.empty(0, device="npu")
    torch.mul(x, 2, out=out)
    yield out
    yield torch.cat([x, y.t()])
    x[:, 1] = 7
    x.index_put_((torch.tensor([0, 1], device="npu"),), torch.zeros(2, 6, device="npu"))
    yield x
    yield x.softmax(-1).sort().values
    yield from torch._foreach_add([x, y], 2)
    yield from x.unbind()[:2]


def training() -> Iterable[Tensor]:
    """Two steps with dropout and AdamW."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.25), nn.Linear(16, 2)).to("npu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    x = torch.randn(5, 8, device="npu")
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        yield loss
    yield from (parameter.detach() for parameter in model.parameters())


def launches() -> Iterable[Tensor]:
    """Kernels, with gradients, in two streams."""
    x = torch.arange(100.0, device="npu").requires_grad_()
    y = scale(scale(x, 2), 3)
    y.sum().backward()
    yield y.detach()
    yield x.grad
    side = torch.npu.Stream()
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side), torch.no_grad():
        z = scale(y, 2)
    torch.npu.current_stream().wait_stream(side)
    z.record_stream(torch.npu.current_stream())
    yield z + 1


def streams() -> Iterable[Tensor]:
    """Streams and events, with queries, times and memory that two streams use."""
    first, second = torch.npu.Stream(), torch.npu.Stream(priority=-1)
    start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    x = torch.arange(4096.0, device="npu")
    first.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(first):
        start.record()
        y = x.clone()
        x.record_stream(first)
        end.record()
    second.wait_event(end)
    with torch.npu.stream(second):
        z = y.clone()
        y.record_stream(second)
    del x
    first.query(), end.query()
    second.synchronize()
    end.synchronize()
    assert start.elapsed_time(end) >= 0
    yield z
    yield y


def captured() -> Iterable[Tensor]:
    """A graph that is captured, updated, replayed and run."""
    info = devices.loaded()
    on_host = info is not None and info.host_visible  # else a graph has the device's kernels only
    graph = graphs.CapturedGraph()
    x = torch.arange(50.0, device="npu")
    with torch.no_grad(), graphs.capture(graph, inputs=x):
        y = scale(x * 2, 3) + 1 if on_host else scale(x, 3)
        graph.outputs = y
    graph.replay()
    yield y
    graph.update({"**.n": 5})
    graph.replay()
    yield y
    yield graph.run(x + 1)
    yield graph.run(x, slots={"**.n": 7})
    graph.reset()


def random_numbers() -> Iterable[Tensor]:
    """Generators: numbers, states, other devices."""
    torch.manual_seed(11)
    yield torch.rand(5, device="npu")
    state = torch.npu.get_rng_state()
    yield torch.randn(5, device="npu:1")
    yield torch.nn.functional.dropout(torch.ones(50, device="npu"), 0.5)
    torch.npu.set_rng_state(state)
    generator = torch.Generator("npu").manual_seed(4)
    yield torch.randperm(9, device="npu", generator=generator)


def profiled() -> Iterable[Tensor]:
    """Work under both profilers."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.PrivateUse1]
    x = torch.ones(100, device="npu")
    with torch.profiler.profile(activities=activities):
        y = scale(x, 4) + x.clone()
    yield y
    with torch.autograd.profiler.profile(use_device="npu", use_kineto=False):
        z = x * 2
    yield z


def loading() -> Iterable[Tensor]:
    """A data loader with pinned memory, and files."""
    data = TensorDataset(torch.arange(12.0).view(6, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for (batch,) in DataLoader(data, batch_size=2, pin_memory=True):
            yield batch.to("npu", non_blocking=True) * 2
    file = io.BytesIO()
    torch.save({"x": torch.arange(5.0, device="npu"), "y": torch.ones(2, device="npu:1")}, file)
    file.seek(0)
    loaded = torch.load(file)
    yield loaded["x"]
    yield loaded["y"]


def mixed_precision() -> Iterable[Tensor]:
    """Autocast and a scaler."""
    torch.manual_seed(5)
    model = nn.Linear(6, 3).to("npu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.npu.amp.GradScaler()
    x = torch.randn(4, 6, device="npu")
    with torch.npu.amp.autocast(dtype=torch.bfloat16):
        loss = model(x).float().square().sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    yield loss.detach()
    yield model.weight.detach()


def memory() -> Iterable[Tensor]:
    """Blocks of all sizes that come, go and are given back; pinned and registered host memory."""
    for _ in range(2):
        blocks = [torch.full((n,), float(n), device="npu") for n in (1, 700, 50_000, 700_000)]
        yield from (block[:3] for block in blocks)
        del blocks
        torch.npu.empty_cache()
    free, total = torch.npu.mem_get_info()
    assert 0 < free <= total
    yield torch.arange(3000.0).pin_memory().to("npu", non_blocking=True)
    torch.npu.synchronize()
    torch.accelerator.empty_host_cache()
    with devices.register_host_memory(torch.arange(5000.0)) as host:
        yield host.to("npu", non_blocking=True)


PROGRAMS: dict[str, Callable[[], Iterable[Tensor]]] = {
    program.__name__: program
    for program in (
        copies,
        fallbacks,
        training,
        launches,
        streams,
        captured,
        random_numbers,
        profiled,
        loading,
        mixed_precision,
        memory,
    )
}
_WORK = ("launch", "copy_async", "fill_async", "graph_launch", "graph_kernel")
_RELEASES = (
    "mem_free",
    "stream_destroy",
    "event_destroy",
    "host_free",
    "host_unregister",
    "module_unload",
    "graph_destroy",
)
# "lost_after" None: it is the number of the call, and the device is reset afterwards.
FAULTS: dict[str, dict[str, Any]] = {
    "refused": {"fail": "any"},
    "failing": {"fail": _WORK, "fail_async": True},
    "out_of_memory": {"fail": ("mem_alloc", "host_alloc"), "fail_status": "out_of_memory"},
    "for_good": {"fail": "any", "fail_every": 1},
    "not_released": {"fail": _RELEASES},
    "never_released": {"fail": _RELEASES, "fail_every": 1},
    "lost": {"lost_after": None},
}


def run(program: Callable[[], Iterable[Tensor]]) -> list[Tensor]:
    """The program's results on cpu, after all of its work."""
    results = [result.detach().cpu() for result in program()]
    for index in range(torch.npu.device_count()):
        torch.npu.synchronize(index)
    return results


def drain() -> None:
    """Takes failures that nobody has asked for yet.

    The thread of a device that ran a backward pass that failed keeps the error, with the tensors of
    its traceback, until it takes the next task: it gets one of no elements.
    """
    for index in range(torch.npu.device_count()):
        with contextlib.suppress(RuntimeError):
            torch.npu.synchronize(index)
        nothing = torch.zeros(0, device=f"npu:{index}", requires_grad=True)
        nothing.clone().backward(nothing.detach())


def state() -> dict[str, Any]:
    """What has to be the same before and after a program."""
    drain()
    gc.collect()
    torch.npu.empty_cache()
    torch.accelerator.empty_host_cache()
    found: dict[str, Any] = {"device": torch.npu.current_device()}
    for index in range(torch.npu.device_count()):
        stats = torch.npu.memory_stats(index)
        found[f"default stream {index}"] = torch.npu.current_stream(
            index
        ) == torch.npu.default_stream(index)
        for key in ("allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes"):
            found[f"{key} {index}"] = stats.get(f"{key}.all.current", 0)
        found[f"free bytes {index}"] = torch.npu.mem_get_info(index)[0]
    return found


def same(results: list[Tensor], expected: list[Tensor]) -> bool:
    """Bit for bit, as both come from the same kernels."""
    return len(results) == len(expected) and all(map(torch.equal, results, expected))


class Sweep:
    """One program under one kind of fault."""

    def __init__(self, program: str, fault: str) -> None:
        self.program = PROGRAMS[program]
        self.fault = FAULTS[fault]
        self.loses_device = "lost_after" in self.fault
        for _ in range(2):  # the first run loads modules and makes plans
            self.expected = run(self.program)
        self.step = run(training)
        self.baseline = state()
        self.problems: list[str] = []
        self.counts = {"runs": 0, "errors": 0, "right in spite of it": 0}

    def calls(self) -> int:
        """How many calls may fail in one run."""
        functions = self.fault.get("fail", "any")
        with devices.sim.faults() as seen:
            run(self.program)
        if functions == "any":
            return seen.calls
        return sum(seen.functions[name].calls for name in functions if name in seen.functions)

    def check(self, number: int) -> None:
        """The run in which call `number` fails."""
        self.counts["runs"] += 1
        error = results = None
        counted = "lost_after" if self.loses_device else "fail_after"
        with devices.sim.faults(**{**self.fault, counted: number}) as injected:
            try:
                results = run(self.program)
            except Exception as raised:
                error = f"{type(raised).__name__}: {raised}"
                del raised
            if self.loses_device and injected.count:
                self.check_reset(f"call {number}")
        where = {name: one.injected for name, one in injected.functions.items() if one.injected}
        self.judge(f"call {number} {where}", error, results, bool(where))

    def judge(
        self, where: str, error: str | None, results: list[Tensor] | None, injected: bool
    ) -> None:
        """Adds what is wrong with a run."""
        if error is not None:
            self.counts["errors"] += 1
            if not re.search(r"injected|out of memory", error):
                self.problems.append(f"{where}: the error does not tell the cause: {error}")
            elif not re.search(r"npu|device \d|operator '|::", error):
                self.problems.append(f"{where}: the error names no device or operator: {error}")
        else:
            self.counts["right in spite of it"] += injected
            if not same(results or [], self.expected):
                self.problems.append(f"{where}: a wrong result and no error")
        self.check_recovery(where, error)

    def check_reset(self, where: str) -> None:
        """Lost devices work again when they are reset."""
        try:
            for index in range(torch.npu.device_count()):
                torch.npu.reset_device(index)
            if not same(run(training), self.step):
                self.problems.append(f"{where}: after the reset training gives other numbers")
        except Exception as raised:
            self.problems.append(f"{where}: after the reset {type(raised).__name__}: {raised}")

    def check_recovery(self, where: str, error: str | None) -> None:
        """The device is as it was, and works."""
        try:
            now = state()
            changed = {
                key: (was, now[key]) for key, was in self.baseline.items() if now[key] != was
            }
            if changed:
                self.problems.append(f"{where}: afterwards {changed}; the error was {error}")
                self.baseline = now
            if not same(run(training), self.step):
                self.problems.append(f"{where}: afterwards training gives other numbers")
        except Exception as raised:
            self.problems.append(f"{where}: afterwards {type(raised).__name__}: {raised}")


def main(program: str, fault: str, step: int) -> None:
    """Sweeps and prints."""
    devices.load_driver("sim")
    sweep = Sweep(program, fault)
    for number in range(0, sweep.calls(), step):
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        sweep.check(number)
        faulthandler.cancel_dump_traceback_later()
    print(json.dumps({"problems": sweep.problems, "counts": sweep.counts}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
