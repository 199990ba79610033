"""Programs of several processes: one process a rank, each check of a program between barriers."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SECONDS = 50
NEVER = 1 << 30  # of a call: there are not so many

Check = Callable[["Rank"], object]


@dataclass(frozen=True)
class Rank:
    """What a check knows of its process.

    Attributes:
        rank: its number.
        size: how many there are.
        device: the name of the device.
        backend: what the group was made with, or "" for none.
    """

    rank: int
    size: int
    device: str
    backend: str


@dataclass
class Refusal:
    """What came of one refused call of the driver.

    Attributes:
        told: whether it was an error.
        count: how many calls were refused in this process: there may have been fewer calls.
    """

    told: bool = False
    count: int = 0

    def was_anywhere(self) -> bool:
        """Return whether a call was refused in any rank, each of which asks."""
        import torch
        import torch.distributed as dist

        counts = torch.tensor(self.count)
        dist.all_reduce(counts)
        return bool(counts)


@contextlib.contextmanager
def refused_call(number: int, fail: str = "any", *, later: bool = False) -> Iterator[Refusal]:
    """Refuse the driver's call of this number in the block, which an error of it ends.

    Args:
        number: of the call, among those of the function that fails.
        fail: name of that function.
        later: the call is taken, and fails in its stream.
    """
    import torch

    from bringup.devices import sim

    found = Refusal()
    with sim.faults(fail=fail, fail_async=later, fail_after=number, fail_count=1) as injected:
        try:
            yield found
        except RuntimeError:
            found.told = True
        found.count = injected.count
    with contextlib.suppress(RuntimeError):
        torch.accelerator.synchronize()


@contextlib.contextmanager
def busy_stream() -> Iterator[None]:
    """Keep the current stream from its end: it waits for an event that is not there meanwhile."""
    import torch

    from bringup.devices import sim

    with sim.faults(lost_event=1):
        stream = torch.accelerator.current_stream()
        stream.wait_event(stream.record_event())
        yield


@dataclass(frozen=True)
class Outcome:
    """How a program ended.

    Attributes:
        asked: the checks of the program.
        passed: those that held in all ranks.
        failed: what the first rank that failed said, by check.
        codes: the exit statuses.
        text: what the processes printed.
    """

    asked: tuple[str, ...]
    passed: tuple[str, ...]
    failed: dict[str, str]
    codes: tuple[int, ...]
    text: str


def run(
    program: str,
    *,
    ranks: int = 2,
    backend: str = "cpu:gloo,npu:bringup",
    driver: str = "sim",
    bound: bool = False,
    only: Sequence[str] = (),
    environment: dict[str, str] | None = None,
) -> Outcome:
    """Run `tests.distributed.<program>` in several processes; one whose check takes more than
    `SECONDS` prints its stacks and ends.
    """
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank in range(ranks):
            asked = json.dumps([rank, ranks, backend, driver, bound, list(only), folder])
            with Path(folder, f"{rank}.txt").open("w") as output:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", f"tests.distributed.{program}", asked],
                        cwd=ROOT,
                        env=os.environ | (environment or {}),
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )
        codes = tuple(process.wait() for process in processes)
        texts = [Path(folder, f"{rank}.txt").read_text() for rank in range(ranks)]
        records = [
            json.loads(line)
            for rank in range(ranks)
            for line in Path(folder, f"{rank}.jsonl").read_text().splitlines()
        ]
    failed: dict[str, str] = {}
    for name, error in records:
        if error:
            failed.setdefault(name, error)
    named = [name for name, error in records if error == ""]
    passed = tuple(name for name in dict.fromkeys(named) if named.count(name) == ranks)
    asked = tuple(dict.fromkeys(name for name, error in records if error is None))
    return Outcome(asked, passed, failed, codes, "\n".join(texts))


def main(checks: Sequence[Check], prepare: Callable[[], object] | None = None) -> None:
    """Run the checks of a program as the rank that the command line names.

    Args:
        checks: of the program.
        prepare: called when the device is there.
    """
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    rank, size, backend, driver, bound, only, folder = json.loads(sys.argv[1])
    records = Path(folder, f"{rank}.jsonl")
    records.touch()
    import torch
    import torch.distributed as dist

    from bringup import devices

    torch.set_num_threads(1)
    name = devices.load_driver(driver).device_name
    if prepare is not None:
        prepare()
    options: dict[str, Any] = {"device_id": torch.device(name, 0)} if bound else {}
    dist.init_process_group(
        backend or None,
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=30),
        **options,
    )
    me = Rank(rank, size, name, backend)
    chosen = [check for check in checks if not only or check.__name__ in only]
    records.write_text("".join(json.dumps([check.__name__, None]) + "\n" for check in chosen))
    for check in chosen:
        error = ""
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        try:
            assert check(me) is not False, "a wrong value"
        except Exception:
            error = traceback.format_exc()
        with records.open("a") as file:
            file.write(json.dumps([check.__name__, error]) + "\n")
        dist.barrier()
    dist.destroy_process_group()
