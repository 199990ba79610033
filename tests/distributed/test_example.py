"""The example that trains under torchrun: a worker that is killed costs little, and another number
of processes goes on.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "examples" / "distributed" / "train_gpt.py"
STEP = re.compile(r"step (\d+): ([0-9.]+)")


def test_a_killed_worker_costs_the_steps_since_the_checkpoint(tmp_path: Path) -> None:
    command = _command(tmp_path, "--nproc-per-node=2", "--max-restarts=1")
    command += ["--steps", "9", "--every", "4"]
    losses: dict[int, list[str]] = {}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as torchrun:
        assert torchrun.stdout is not None
        lines = []
        for line in torchrun.stdout:
            lines.append(line)
            if found := STEP.match(line):
                losses.setdefault(int(found[1]), []).append(found[2])
                if found[1] == "6" and len(losses[6]) == 1:
                    os.kill(_workers(torchrun.pid)[-1], signal.SIGKILL)
    assert torchrun.returncode == 0, "".join(lines)
    assert sorted(losses) == list(range(1, 10))
    again = [step for step, told in losses.items() if len(told) == 2]
    assert again[0] == 5  # the first after the checkpoint
    assert all(len(set(told)) == 1 for told in losses.values()), losses

    command = [*_command(tmp_path, "--nproc-per-node=1"), "--steps", "10"]
    alone = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [found[1] for found in STEP.finditer(alone)] == ["10"]


def _command(folder: Path, *options: str) -> list[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", *options]
    return [*torchrun, str(PROGRAM), "--folder", str(folder)]


def _workers(parent: int) -> list[int]:
    """Return the processes that torchrun started, by number."""
    return sorted(child.pid for child in psutil.Process(parent).children())
