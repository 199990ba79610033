"""What comes before the model: a C function becomes an operator, and a new driver a device."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bringup import devices, jit, ops
from bringup._processes import ending, output_within, started
from bringup.cli._new_command import write_package
from bringup.cli.trial.timing import Limits, Rounds
from bringup.cli.trial.verdict import spread
from bringup.report import Ratio

_SECONDS = 60.0  # for the training
_NAME = "demo_board"
_ADD = """#include <stdint.h>
void add(float* out, const float* x, const float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] + y[i];
}
"""
_LIMITS = Limits(seconds=2.0)

Step = Callable[[str], AbstractContextManager[None]]


@dataclass
class Act:
    """What came out: `us` of a call by name, `ratio` of torch's own time to it."""

    title: str
    words: str = ""
    us: dict[str, float] = field(default_factory=dict)
    ratio: Ratio | None = None
    losses: list[float] = field(default_factory=list)
    has_failed: bool = False


def perform(performed: list[Act], step: Step) -> None:
    """Run the acts; what one needs and is not there becomes its sentence."""
    for title, run in (
        ("A C function becomes an operator", operator_act),
        ("A new driver becomes a device", driver_act),
    ):
        act = Act(title)
        with step(title):
            compiler = jit.toolchain("cpu")
            if compiler.problem:
                act.words = f"left out, it needs a compiler: {compiler.problem}"
            else:
                run(act)
        performed.append(act)


@functools.cache
def _operator() -> Callable[..., Any]:
    return ops.kernel_op(
        "bringup_demo::add(Tensor x, Tensor y) -> Tensor",
        source=jit.Source(name="add.c", text=_ADD),
        entry="add",
        args="ptr(out), ptr(x), ptr(y), numel(x)",
        outputs=ops.empty_like("x"),
        checks=[ops.same_shape("x", "y")],
    )


def operator_act(act: Act) -> None:
    """Time a C function of four lines, as an operator, beside torch's own."""
    x, y = torch.randn(256), torch.randn(256)
    ours = _operator()
    if not torch.equal(ours(x, y), torch.add(x, y)):
        act.has_failed, act.words = True, "it adds otherwise than torch.add"
        return
    rounds: Rounds[str] = Rounds()
    calls = {"torch.add": lambda: torch.add(x, y), "add.c": lambda: ours(x, y)}
    rounds.take(calls, baseline="torch.add", limits=_LIMITS)
    act.us = {name: rounds.milliseconds(name) * 1e3 for name in calls}
    act.ratio = rounds.ratio("torch.add", "add.c")
    act.words = (
        f"four lines of C, as torch.ops.bringup_demo.add: {spread(act.ratio)} as fast as torch.add"
    )


def driver_act(act: Act) -> None:
    """Write `bringup new driver`'s package, compile it, and train a model on the device."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        write_package("driver", _NAME, Path(folder))
        source = jit.Source(Path(folder, _NAME, "driver.c"), entry="bringup_driver_get")
        macros = {"_POSIX_C_SOURCE": "200809L"}
        library = jit.compile(source, macros=macros, flags=("-fexceptions", "-pthread")).path
        program = (sys.executable, "-m", "bringup.cli.demo.acts", str(library))
        with started(program, errors=subprocess.DEVNULL) as child:
            said, in_time = output_within(child, _SECONDS)
    if not in_time or child.returncode != 0:
        how = ending(child.returncode) if in_time else f"no end after {_SECONDS:.0f} s"
        act.has_failed, act.words = True, f"{' '.join(program[:3])} ...: {how}"
        return
    act.losses = json.loads(said)
    seconds = time.perf_counter() - began
    act.words = (
        f"bringup new driver {_NAME}, {len(act.losses)} steps of training: loss "
        f"{act.losses[0]:.3f} to {act.losses[-1]:.3f}, {seconds:.0f} s in all"
    )


def train(library: str, steps: int = 40) -> list[float]:
    """Return the losses of a small model that is trained on the driver's device."""
    device = devices.load_driver(library).device_name
    torch.manual_seed(0)
    layers = (torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    model = torch.nn.Sequential(*layers).to(device)
    x = torch.randn(64, 8).to(device)
    target = x.sum(1, keepdim=True).sin()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(steps):
        loss = (model(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    print(json.dumps(train(sys.argv[1])))
