"""Random programs of collectives on a device, each compared with the same on all ranks' numbers.

Groups, streams, threads, layouts, dtypes, temporaries, works that are waited for late, and captured
graphs are mixed; every rank draws the same program and computes by itself what all ranks hold then.
"""

from __future__ import annotations

import contextlib
import functools
import json
import random
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from tests.distributed.program_steps import (
    BUFFERS,
    DTYPES,
    ELEMENTS,
    KINDS,
    At,
    Buffers,
    Draw,
    Step,
    alone,
    captured,
    functional_sum,
)
from tests.distributed.ranks import Check, Rank, main
from tests.sweeps.support import part

from bringup.devices import sim

PROGRAMS = 200
STEPS = 16


@dataclass(frozen=True)
class Program:
    """What one thread of every rank does.

    Attributes:
        dtype: of all numbers.
        steps: in their order.
    """

    dtype: torch.dtype
    steps: list[Step]

    @staticmethod
    def drawn(rng: random.Random, sizes: Sequence[int], kinds: Sequence[Any]) -> Program:
        dtype, steps = rng.choice(DTYPES), []
        for _ in range(STEPS):
            kind = rng.choice(kinds)
            if kind is functional_sum and dtype.is_complex:
                continue
            group = 0 if kind in (alone, captured) else rng.randrange(len(sizes))
            step = kind(Draw(rng, dtype, sizes[group]))
            steps.append(
                Step(step.run, step.want, step.views, group, rng.randrange(3), rng.random() < 0.5)
            )
        return Program(dtype, steps)

    def begin(self, rank: int) -> Buffers:
        numbers = torch.arange(ELEMENTS)
        return {
            name: ((numbers * (i + 3) + 7 * rank + i) % 11).to(self.dtype)
            for i, name in enumerate(BUFFERS)
        }

    def wanted(self, size: int, members: Sequence[Sequence[int]]) -> list[Buffers]:
        ranks = [self.begin(rank) for rank in range(size)]
        for step in self.steps:
            step.want([ranks[rank] for rank in members[step.group]])
        return ranks

    def run(
        self,
        me: Rank,
        buffers: Buffers,
        groups: Sequence[Any],
        members: Sequence[Sequence[int]],
        streams: Sequence[torch.Stream],
    ) -> None:
        last: dict[str, torch.Stream] = {}
        pending: dict[str, list[Any]] = {}
        for step in self.steps:
            ranks = members[step.group]
            if me.rank not in ranks:
                continue
            stream = streams[step.stream]
            at = At(buffers, groups[step.group], ranks.index(me.rank), len(ranks), step.is_async)
            with stream:
                for name in {view.buffer for view in step.views}:
                    if last.setdefault(name, stream) is not stream:
                        stream.wait_stream(last[name])
                    last[name] = stream
                    for work in pending.pop(name, ()):
                        work.wait()
                works = step.run(at)
                for work in works if isinstance(works, list) else [works] if works else []:
                    for name in {view.buffer for view in step.views if not view.is_copied}:
                        pending.setdefault(name, []).append(work)
        with streams[0]:
            for works in pending.values():
                for work in works:
                    work.wait()


THREADS = 2


@functools.cache
def _groups(size: int) -> tuple[list[list[Any]], list[list[int]], list[list[torch.Stream]]]:
    """Return of each thread the groups, the ranks of each, and of each thread the streams."""
    members = [list(range(size)), list(range(size)), [0, 1], [size - 2, size - 1]]
    groups = [[dist.new_group(ranks) for ranks in members] for _ in range(THREADS)]
    return groups, members, [[torch.Stream() for _ in range(3)] for _ in range(THREADS)]


def _check(seed: int, me: Rank) -> None:
    rng = random.Random(seed)
    groups, members, streams = _groups(me.size)
    is_threaded = rng.random() < 0.3
    kinds = KINDS if is_threaded else (*KINDS, captured, captured)
    sizes = [len(ranks) for ranks in members]
    programs = [Program.drawn(rng, sizes, kinds) for _ in range(THREADS if is_threaded else 1)]
    latency = rng.choice((None, None, 300, 2000))
    buffers = [
        {name: x.to(me.device) for name, x in program.begin(me.rank).items()}
        for program in programs
    ]
    torch.accelerator.synchronize()
    errors: list[BaseException] = []

    def run(i: int) -> None:
        try:
            programs[i].run(me, buffers[i], groups[i], members, streams[i])
        except BaseException as error:
            errors.append(error)

    with sim.faults(copy_latency_us=latency) if latency else contextlib.nullcontext():
        threads = [threading.Thread(target=run, args=(i,)) for i in range(1, len(programs))]
        for thread in threads:
            thread.start()
        run(0)
        for thread in threads:
            thread.join()
        for error in errors:
            raise error
        torch.accelerator.synchronize()
    for program, found in zip(programs, buffers, strict=True):
        for name, want in program.wanted(me.size, members)[me.rank].items():
            got = found[name].cpu()
            assert torch.equal(got, want), (program.dtype, name, got, want)


def _checks() -> list[Check]:
    checks: list[Check] = []
    for seed in range(PROGRAMS):
        check = functools.partial(_check, seed)
        check.__name__ = f"program_{seed}"  # type: ignore[attr-defined]
        checks.append(check)
    asked = json.loads(sys.argv[1])[5]
    return checks if asked else part(checks)


if __name__ == "__main__":
    from bringup_sim_ops import load

    main(_checks(), prepare=load)
