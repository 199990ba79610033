"""Steps of DDP and FSDP2: with each call of the driver refused in turn, and DDP's under delays."""

from __future__ import annotations

import contextlib
import faulthandler
import random
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from tests.distributed.ranks import SECONDS, Check, Rank, main, refused_call
from tests.sweeps.support import FULL, PARTS, seed
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
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


def _replicated(me: Rank, group: Any) -> nn.Module:
    model = _net().to(me.device)
    return DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.0005)


def _sharded(me: Rank, group: Any) -> nn.Module:
    model, mesh = _net().to(me.device), DeviceMesh.from_group(group, me.device)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return model


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    _backward(model, x)
    optimizer.step()


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def _compare(me: Rank, found: list[torch.Tensor], want: nn.Module) -> None:
    """Compare a rank's parameters, or its part of them, with those of one process."""
    for part, whole in zip(found, want.parameters(), strict=True):
        is_part = part.shape != whole.shape
        torch.testing.assert_close(part, whole.chunk(me.size)[me.rank] if is_part else whole.data)


def _go_on() -> None:
    faulthandler.dump_traceback_later(SECONDS, exit=True)


def _refuse_calls(me: Rank, make: Callable[[Rank, Any], nn.Module]) -> None:
    want = _net()
    _step(want, _optimizer(want), torch.cat(_batch(me, 0)))
    told = 0
    for number in range(0 if FULL else seed() % PARTS, CALLS, 1 if FULL else PARTS):
        _go_on()
        group = dist.new_group(timeout=timedelta(seconds=5))
        model = make(me, group)
        optimizer = _optimizer(model)
        x = _batch(me, 0)[me.rank].to(me.device)
        torch.accelerator.synchronize()
        dist.barrier()
        with refused_call(number) as refusal:
            _step(model, optimizer, x)
            found = [
                (p.to_local() if isinstance(p, DTensor) else p).detach().cpu()
                for p in model.parameters()
            ]
        told += refusal.told
        if not refusal.told:
            _compare(me, found, want)
        del model, optimizer
        if not refusal.was_anywhere():
            break
    assert number < CALLS - PARTS
    assert told >= 3


def a_refused_call_during_a_step_is_an_error_or_does_no_harm(me: Rank) -> None:
    _refuse_calls(me, _replicated)


def a_refused_call_during_a_sharded_step_is_an_error_or_does_no_harm(me: Rank) -> None:
    _refuse_calls(me, _sharded)


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
    a_refused_call_during_a_sharded_step_is_an_error_or_does_no_harm,
)

if __name__ == "__main__":
    main(CHECKS)
