"""Steps of DDP: with each call of the driver refused in turn, and many under random delays."""

from __future__ import annotations

import contextlib
import faulthandler
import random
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from tests.distributed.ranks import SECONDS, Check, Rank, main, refused_call
from tests.sweeps.support import FULL, PARTS, seed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bringup.devices import sim

STEPS = 1000 if FULL else 1000 // PARTS
CALLS = 1000  # more than a step makes


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def _batch(me: Rank, number: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return list(torch.randn(2 * me.size, 8, generator=generator).split(2))


def _backward(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(x).square().mean()
    loss.backward()
    return loss


def _gradients(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten().cpu() for p in model.parameters() if p.grad is not None])


def _go_on() -> None:
    faulthandler.dump_traceback_later(SECONDS, exit=True)


def a_refused_call_during_a_step_is_an_error_or_does_no_harm(me: Rank) -> None:
    want = _net()
    _backward(want, torch.cat(_batch(me, 0)))
    told = 0
    for number in range(0 if FULL else seed() % PARTS, CALLS, 1 if FULL else PARTS):
        _go_on()
        group = dist.new_group(timeout=timedelta(seconds=5))
        model = DistributedDataParallel(
            _net().to(me.device), process_group=group, bucket_cap_mb=0.0005
        )
        x = _batch(me, 0)[me.rank].to(me.device)
        torch.accelerator.synchronize()
        dist.barrier()
        found = torch.zeros(1)
        with refused_call(number) as refusal:
            _backward(model, x)
            found = _gradients(model)
        told += refusal.told
        if not refusal.told:
            torch.testing.assert_close(found, _gradients(want))
        del model
        if not refusal.was_anywhere():
            break
    assert number < CALLS - PARTS
    assert told >= 3


def losses_under_random_delays_are_those_of_one_process(me: Rank) -> None:
    want = _net()
    model = DistributedDataParallel(_net().to(me.device), bucket_cap_mb=0.0005)
    pairs = [(want, torch.optim.SGD(want.parameters(), lr=0.05))]
    pairs.append((model, torch.optim.SGD(model.parameters(), lr=0.05)))
    drawn = random.Random(me.rank + seed())
    begin = time.monotonic()
    for number in range(STEPS):
        _go_on()
        batch = _batch(me, number)
        losses = []
        for (one, optimizer), x in zip(
            pairs, (torch.cat(batch), batch[me.rank].to(me.device)), strict=True
        ):
            delays: dict[str, Any] = {}
            if one is model:
                time.sleep(drawn.random() * 0.002)
                delays = {"copy_latency_us": drawn.choice([1, 20, 300])}
                delays |= {"launch_latency_us": drawn.choice([1, 50])}
                delays |= {"reorder": "random", "seed": number}
            with sim.faults(**delays) if delays else contextlib.nullcontext():
                optimizer.zero_grad()
                losses.append(_backward(one, x).detach().cpu())
                optimizer.step()
                torch.accelerator.synchronize()
        dist.all_reduce(losses[1], dist.ReduceOp.SUM)
        torch.testing.assert_close(losses[1] / me.size, losses[0], msg=f"step {number}")
    print(f"{STEPS} steps in {time.monotonic() - begin:.0f} s", flush=True)


CHECKS: tuple[Check, ...] = (
    losses_under_random_delays_are_those_of_one_process,
    a_refused_call_during_a_step_is_an_error_or_does_no_harm,
)

if __name__ == "__main__":
    main(CHECKS)
