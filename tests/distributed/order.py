"""What a collective comes after and before, on a device whose copies are slow."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from datetime import timedelta
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from tests.distributed.ranks import NEVER, Check, Rank, busy_stream, main, refused_call
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bringup import graphs, settings
from bringup.devices import sim

SLOW = 20_000  # microseconds
ROUNDS = 3


def _late(me: Rank, value: float, elements: int = 1000) -> torch.Tensor:
    """Return a tensor that has the value when a slow copy in the current stream is done."""
    source = torch.full((elements,), value, device=me.device)
    target = torch.zeros(elements, device=me.device)
    return target.copy_(source, non_blocking=True)


def what_is_queued_before_is_there(me: Rank) -> None:
    with sim.faults(copy_latency_us=SLOW):
        _collect_late_tensors(me)


def _collect_late_tensors(me: Rank) -> None:
    total = me.size * (me.size + 1) / 2
    for _ in range(ROUNDS):
        x = _late(me, me.rank + 1)
        dist.all_reduce(x)
        assert x.eq(total).all(), x
        parts = _late(me, me.rank + 1, 10 * me.size)
        whole = torch.zeros(10, device=me.device)
        dist.reduce_scatter_tensor(whole, parts)
        assert whole.eq(total).all(), whole
        sent, received = _late(me, me.rank), torch.full((1000,), -1.0, device=me.device)
        works = (
            dist.isend(sent, (me.rank + 1) % me.size),
            dist.irecv(received, (me.rank - 1) % me.size),
        )
        for work in works:
            work.wait()
        assert received.eq((me.rank - 1) % me.size).all(), received


def results_are_there_for_the_stream_that_waits(me: Rank) -> None:
    total = me.size * (me.size + 1) / 2
    other = torch.Stream(me.device)
    for _ in range(ROUNDS):
        x = torch.full((1000,), me.rank + 1.0, device=me.device)
        with sim.faults(copy_latency_us=SLOW):
            work = dist.all_reduce(x, async_op=True)
            with other:
                work.wait()
                doubled = x * 2
        other.synchronize()
        assert doubled.eq(2 * total).all(), doubled
        y = torch.full((1000,), me.rank + 1.0, device=me.device)
        with sim.faults(copy_latency_us=SLOW):
            future = dist.all_reduce(y, async_op=True).get_future()
            future.wait()
            doubled = y * 2
        assert doubled.eq(2 * total).all(), doubled


def the_caller_does_not_wait_for_the_device(me: Rank) -> None:
    x = torch.ones(1000, device=me.device)
    with busy_stream():
        work = dist.all_reduce(x, async_op=True)
        assert not work.is_completed()
    work.wait()
    assert x.eq(me.size).all()


def a_group_does_not_wait_for_another(me: Rank) -> None:
    first, second = dist.new_group(), dist.new_group()
    x, y = torch.ones(1000, device=me.device), torch.ones(10, device=me.device)
    end = time.monotonic() + 30
    with torch.Stream(me.device), busy_stream():
        behind = dist.all_reduce(x, group=first, async_op=True)
        with torch.Stream(me.device):
            work = dist.all_reduce(y, group=second, async_op=True)
        while not work.is_completed():
            assert time.monotonic() < end, "it waits for the other group"
            time.sleep(0.001)
        assert not behind.is_completed()
    behind.wait()
    work.wait()
    assert x.eq(me.size).all()
    assert y.eq(me.size).all()


def _group_by_gloo() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRINGUP_COLLECTIVES", "gloo")
        return dist.new_group()


def what_failed_before_is_told_by_gloo_too(me: Rank) -> None:
    """Also where the stream has come to its end since: in it, in another, in the group's own."""
    for is_elsewhere in (False, True):
        group, here = _group_by_gloo(), torch.accelerator.current_stream()
        x, y = torch.ones(1000, device=me.device), torch.zeros(1000, device=me.device)
        torch.accelerator.synchronize()
        with sim.faults(fail="copy_async", fail_async=True) as injected:
            with torch.Stream(me.device) if is_elsewhere else here as stream:
                y.copy_(x, non_blocking=True)
            here.wait_stream(stream)
            while not (stream.query() and here.query()):
                time.sleep(0.001)
        assert injected.count == 1
        with pytest.raises(RuntimeError, match="injected"):
            dist.all_reduce(y, group=group, async_op=True).wait()
        with contextlib.suppress(RuntimeError):  # its own stream tells it too
            torch.accelerator.synchronize()


def a_failed_copy_of_gloos_is_told(me: Rank) -> None:
    for number in range(8):
        group, x = _group_by_gloo(), torch.ones(1000, device=me.device)
        group._get_backend(x.device).set_timeout(timedelta(seconds=0.5))
        torch.accelerator.synchronize()
        dist.barrier()
        mine = number if me.rank == 0 else NEVER
        with refused_call(mine, "copy_async", later=True) as refusal:
            work = dist.all_reduce(x, group=group, async_op=True)
            while not work.is_completed():
                time.sleep(0.001)
            while not torch.accelerator.current_stream().query():
                time.sleep(0.001)
            work.wait()
            torch.accelerator.synchronize()
            assert x.cpu().eq(me.size).all(), x
        assert refusal.told == (refusal.count > 0) or me.rank > 0, number
        if not refusal.was_anywhere():
            break
    assert number == (3 if os.environ.get("BRINGUP_SIM_ISOLATED") == "1" else 0), number


def a_group_shares_its_streams_with_nobody(me: Rank) -> None:
    """But with groups that come when it is gone."""
    group = dist.new_group()
    x = torch.ones(3, device=me.device)
    dist.all_reduce(x, group=group)
    torch.accelerator.synchronize()
    for rank in range(me.size):
        if rank == me.rank:
            work = dist.all_reduce(x, group=group, async_op=True)
            for stream in [torch.Stream(me.device) for _ in range(64)]:
                stream.synchronize()
        dist.barrier()
    work.wait()
    assert x.eq(me.size**2).all(), x
    torch.accelerator.synchronize()
    dist.destroy_process_group(group)
    del group, work
    gc.collect()
    with sim.faults(fail="stream_create"):
        dist.all_reduce(x, group=dist.new_group())
    assert x.eq(me.size**3).all(), x


def memory_of_a_result_is_kept_until_it_is_there(me: Rank) -> None:
    x = torch.ones(70_000, device=me.device)
    address = x.data_ptr()
    torch.accelerator.synchronize()
    with sim.faults(copy_latency_us=10 * SLOW):
        dist.all_reduce(x, async_op=True)
        del x
        end = time.monotonic() + 10
        held = []  # other blocks of that size, which would be given again and again
        again = torch.empty(70_000, device=me.device)
        while again.data_ptr() != address and time.monotonic() < end:
            held.append(again)
            time.sleep(0.01)
            again = torch.empty(70_000, device=me.device)
    assert again.data_ptr() == address
    assert again.eq(me.size).all(), again


def captures_leave_what_other_streams_write_meanwhile(me: Rank) -> None:
    if not settings.collectives():
        return  # gloo's own are to be waited for before a capture
    x, y, one = (torch.full((1000,), n, device=me.device) for n in (1.0, 0.0, 1.0))
    torch.accelerator.synchronize()
    dist.barrier()
    time.sleep(0.3 if me.rank == 1 else 0)
    work = dist.all_reduce(x, async_op=True)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        y.copy_(one)
        time.sleep(0.5)  # longer than it takes
    work.wait()
    graph.replay()
    assert x.eq(me.size).all(), x
    assert y.eq(1).all(), y


def captures_leave_what_gloo_writes_meanwhile(me: Rank) -> None:
    group = _group_by_gloo()
    store = dist.distributed_c10d._get_default_store()
    x, y, one = (torch.full((1000,), n, device=me.device) for n in (1.0, 0.0, 1.0))
    other, graph = torch.Stream(me.device), graphs.CapturedGraph()
    if me.rank > 0:
        store.wait(["captured"])
        dist.all_reduce(x, group=group)
        return
    end = time.monotonic() + 30
    with sim.faults(copy_latency_us=5 * SLOW):
        with other:
            z = _late(me, 7)
        work = dist.all_reduce(x, group=group, async_op=True)
        with graphs.capture(graph):
            store.set("captured", "")
            while not work.is_completed():
                assert time.monotonic() < end, "it waits for the capture"
                time.sleep(0.001)
            y.copy_(one)
    work.wait()
    graph.replay()
    assert x.eq(me.size).all(), x
    assert z.eq(7).all(), z
    assert y.eq(1).all(), y


def collectives_of_threads_keep_their_order(me: Rank) -> None:
    errors: list[BaseException] = []

    def work(group: Any) -> None:
        try:
            with torch.Stream(me.device):  # in a common one they would wait for one another
                for turn in range(10):
                    x = torch.full((100,), float(turn), device=me.device)
                    dist.all_reduce(x, group=group)
                    assert x.eq(turn * me.size).all()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(dist.new_group(),)) for _ in range(3)]
    with sim.faults(copy_latency_us=500):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


class _SlowBackward(torch.autograd.Function):
    """Computes nothing, and in the backward a slow copy.

    Attributes:
        ends: of the backward's copies.
        reduced: for what the backward's last copy waits.
    """

    ends: ClassVar[list[torch.Event]] = []
    reduced: ClassVar[threading.Event] = threading.Event()

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        if len(_SlowBackward.ends) == 3:
            assert _SlowBackward.reduced.wait(30), "nothing is reduced before the backward's end"
        into = torch.empty_like(grad).copy_(grad, non_blocking=True)
        _SlowBackward.ends.append(torch.accelerator.current_stream().record_event())
        return into


def gradients_are_reduced_while_others_are_computed(me: Rank) -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> Any:
            return _SlowBackward.apply(self.linear(x))

    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(*(Layer() for _ in range(4))).to(me.device), bucket_cap_mb=0.001
    )
    overlapped: list[bool] = []

    def hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        def reduced(future: Any) -> torch.Tensor:
            overlapped.append(len(_SlowBackward.ends) < 4)
            _SlowBackward.reduced.set()
            value: torch.Tensor = future.value()[0]
            return value

        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(reduced)

    hook.__annotations__.clear()  # DDP compares them, and these are texts
    model.register_comm_hook(None, hook)
    _SlowBackward.reduced.set()
    for _ in range(2):
        _SlowBackward.ends.clear()
        overlapped.clear()
        loss = model(torch.ones(2, 64, device=me.device)).sum()
        with sim.faults(copy_latency_us=SLOW):
            loss.backward()
        _SlowBackward.reduced.clear()  # DDP made its buckets anew, one for each layer
    assert any(overlapped), overlapped
    assert not all(overlapped), overlapped


CHECKS: tuple[Check, ...] = (
    what_is_queued_before_is_there,
    results_are_there_for_the_stream_that_waits,
    the_caller_does_not_wait_for_the_device,
    a_group_does_not_wait_for_another,
    what_failed_before_is_told_by_gloo_too,
    a_failed_copy_of_gloos_is_told,
    a_group_shares_its_streams_with_nobody,
    memory_of_a_result_is_kept_until_it_is_there,
    captures_leave_what_other_streams_write_meanwhile,
    captures_leave_what_gloo_writes_meanwhile,
    collectives_of_threads_keep_their_order,
    gradients_are_reduced_while_others_are_computed,
)

if __name__ == "__main__":
    main(CHECKS)
