"""What goes wrong between processes: late and dead peers, failed work, forks, ended groups."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.distributed.ranks import NEVER, Check, Rank, busy_stream, main, refused_call

from bringup import settings
from bringup.devices import sim


def _read(work: Any, x: torch.Tensor) -> torch.Tensor:
    work.wait()
    return x.cpu()


def _reduced(x: torch.Tensor, group: Any) -> torch.Tensor:
    return _read(dist.all_reduce(x, group=group, async_op=True), x)


def a_late_peer_is_an_error_after_the_timeout(me: Rank) -> None:
    group = dist.new_group(timeout=timedelta(seconds=1))
    x = torch.ones(3, device=me.device)
    begin = time.monotonic()
    if me.rank == 0:
        for wait in (
            lambda: dist.all_reduce(x, group=group),
            lambda: dist.all_reduce(x, group=group, async_op=True).get_future().wait(),
        ):
            with pytest.raises(RuntimeError):
                wait()
        assert time.monotonic() - begin < 15


def a_late_peer_of_a_group_that_has_begun_is_an_error(me: Rank) -> None:
    group = dist.new_group(timeout=timedelta(seconds=1))
    x = torch.ones(3, device=me.device)
    dist.all_reduce(x, group=group)
    torch.accelerator.synchronize()
    if me.rank == 0:
        for _ in range(2):  # what comes later fails too
            with pytest.raises(RuntimeError):
                _reduced(x, group)


def an_aborted_group_ends_what_waits_here_and_there(me: Rank) -> None:
    if not settings.collectives():
        return  # gloo's abort() ends nothing before the time limit
    group = dist.new_group()  # of a long time limit
    x = torch.ones(3, device=me.device)
    dist.all_reduce(x, group=group)
    torch.accelerator.synchronize()
    dist.barrier()
    begin = time.monotonic()
    if me.rank == 0:
        work = dist.all_reduce(x, group=group, async_op=True)
        group._get_backend(x.device).abort()
        with pytest.raises(RuntimeError):
            _read(work, x)
    dist.barrier()
    with contextlib.suppress(RuntimeError):  # of which the peer may have sent all
        _reduced(x, group)
    with pytest.raises(RuntimeError):
        _reduced(x, group)
    assert time.monotonic() - begin < 20


def failed_work_before_a_collective_is_its_error(me: Rank) -> None:
    group = dist.new_group()
    x = torch.ones(1000, device=me.device)
    y = torch.zeros(1000, device=me.device)
    torch.accelerator.synchronize()
    with sim.faults(fail="copy_async", fail_async=True):
        with busy_stream():
            y.copy_(x, non_blocking=True)
            work = dist.all_reduce(y, group=group, async_op=True)
        while not work.is_completed():
            time.sleep(0.001)
        assert not work.is_success()
        with pytest.raises(RuntimeError, match="injected"):
            work.wait()
    with contextlib.suppress(RuntimeError):  # its stream may tell it too
        torch.accelerator.synchronize()


def _add_up(x: torch.Tensor, me: Rank, group: Any) -> float:
    """Return what `x`, filled with 1, is then to be filled with."""
    dist.all_reduce(x, group=group)
    return float(me.size)


def _pass_on(x: torch.Tensor, me: Rank, group: Any) -> float:
    if me.rank < 2:
        work = (dist.isend, dist.irecv)[me.rank](x, 1 - me.rank, group=group)
        work.wait(timedelta(seconds=0.5))
    return 1.0


def a_refused_call_in_one_rank_is_an_error_or_does_no_harm(me: Rank) -> None:
    """Nor do the peers take what comes next for it."""
    for way, act in (("driver", _add_up), ("gloo", _add_up), ("gloo", _pass_on)):
        told = 0
        for number in range(40):
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("BRINGUP_COLLECTIVES", way)
                group = dist.new_group(timeout=timedelta(seconds=20))
            first, x, y = (torch.ones(1000, device=me.device) for _ in range(3))
            y *= 100
            act(first, me, group)
            torch.accelerator.synchronize()
            group._get_backend(x.device).set_timeout(timedelta(seconds=0.5))
            dist.barrier()
            with refused_call(number if me.rank == 0 else NEVER) as refusal:
                want = act(x, me, group)
                assert x.cpu().eq(want).all(), (way, number, x)
            told += refusal.told
            with contextlib.suppress(RuntimeError):
                want = 100 * act(y, me, group)
                assert y.cpu().eq(want).all(), (way, number, y)
            if not refusal.was_anywhere():
                break
        assert number < 39
        assert told >= 3 or me.rank > 0, (way, told)


def a_group_ends_with_work_that_has_not_begun(me: Rank) -> None:
    group = dist.new_group(timeout=timedelta(seconds=3))
    x = torch.ones(1000, device=me.device)
    end = time.monotonic() + 30
    with busy_stream():
        works = [dist.all_reduce(x, group=group, async_op=True) for _ in range(3)]
        ends = threading.Thread(target=group._get_backend(x.device).shutdown)
        ends.start()
        with contextlib.suppress(RuntimeError):  # where new work is refused
            while not dist.all_reduce(x, group=group, async_op=True).is_completed():
                assert time.monotonic() < end, "new work still waits for its turn"
                time.sleep(0.01)
    ends.join()
    begun = len(works) if settings.collectives() else 1  # what is in a stream goes on
    with contextlib.suppress(RuntimeError):  # here, there, or nowhere
        for work in works[:begun]:
            work.wait()
    for work in works[begun:]:
        with pytest.raises(RuntimeError, match="destroyed before this collective began"):
            work.wait()
    with pytest.raises(RuntimeError, match="destroyed"):
        dist.all_reduce(x, group=group)
    dist.destroy_process_group(group)


def a_forked_child_is_refused(me: Rank) -> None:
    x, y = torch.zeros(1000, device=me.device), torch.ones(1000, device=me.device)
    torch.accelerator.synchronize()
    with sim.faults(copy_latency_us=20_000):
        group = dist.new_group(backend="bringup")  # gloo's own ends no child either
        dist.all_reduce(x.copy_(y, non_blocking=True), group=group)  # it has a thread
    child = os.fork()
    if child == 0:
        try:
            group._get_backend(x.device).barrier()
        except RuntimeError as error:
            refused = "forked" in str(error)
        dist.destroy_process_group(group)
        del group
        gc.collect()
        os._exit(0 if refused else 1)
    assert os.waitpid(child, 0)[1] == 0
    dist.all_reduce(x, group=group)


def wrong_tensors_are_refused_where_they_are_given(me: Rank) -> None:
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device(me.device))
    for tensor, words in (
        (torch.ones(3), "got a tensor of cpu"),
        (torch.ones(3, device=me.device).to_sparse(), "expected a dense one"),
    ):
        with pytest.raises(ValueError, match=words):
            backend.allreduce([tensor], dist.AllreduceOptions())
    with pytest.raises(
        NotImplementedError, match="take dense ones"
    ):  # not one that changes nothing
        dist.all_reduce(torch.eye(3).to_sparse().to(me.device))
    x = torch.ones(2, dtype=torch.int16, device=me.device)
    for call in (
        lambda: dist.all_gather_into_tensor(torch.ones(4, device=me.device).to(torch.uint16), x),
        lambda: dist.all_to_all([x[:1], x[1:].float()], [x[:1], x[1:]]),
    ):
        with pytest.raises((TypeError, ValueError, RuntimeError), match=r"dtype|type"):
            call()


def memory_of_which_elements_overlap_is_not_written(me: Rank) -> None:
    """Nor does the group end."""
    x = torch.zeros(1, device=me.device).expand(4)
    y = torch.ones(4, device=me.device)
    whole = torch.ones(4 * me.size, device=me.device)
    for call in (
        lambda: dist.all_reduce(x),
        lambda: dist.broadcast(x, 0),
        lambda: dist.reduce(x, 0),
        lambda: dist.all_gather([x] * me.size, y),
        lambda: dist.all_gather_into_tensor(x.expand(me.size, 4), y),
        lambda: dist.scatter(x, [y] * me.size if me.rank == 0 else None),
        lambda: dist.reduce_scatter(x, [y] * me.size),
        lambda: dist.reduce_scatter_tensor(x, whole),
        lambda: dist.all_to_all_single(x, y),
        lambda: dist.all_to_all([x] * me.size, [y] * me.size),
        lambda: dist.recv(x, 1 - me.rank),
    ):
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            call()
    dist.all_gather_into_tensor(whole, x)  # reads may overlap
    dist.all_reduce(y)
    assert whole.eq(0).all()
    assert y.eq(me.size).all()


def a_dead_peer_is_an_error(me: Rank) -> None:
    """Comes last: nothing is left of the group."""
    x = torch.ones(3, device=me.device)
    begun, new = dist.new_group(), dist.new_group()
    _reduced(x, begun)
    dist.barrier()
    if me.rank == 1:
        os._exit(0)
    begin = time.monotonic()
    for group in (begun, new):
        with pytest.raises(RuntimeError):
            _reduced(x, group)
    assert time.monotonic() - begin < 20
    print("told of the dead peer", flush=True)
    os._exit(0)


CHECKS: tuple[Check, ...] = (
    a_late_peer_is_an_error_after_the_timeout,
    a_late_peer_of_a_group_that_has_begun_is_an_error,
    an_aborted_group_ends_what_waits_here_and_there,
    failed_work_before_a_collective_is_its_error,
    a_refused_call_in_one_rank_is_an_error_or_does_no_harm,
    a_group_ends_with_work_that_has_not_begun,
    a_forked_child_is_refused,
    wrong_tensors_are_refused_where_they_are_given,
    memory_of_which_elements_overlap_is_not_written,
    a_dead_peer_is_an_error,
)

if __name__ == "__main__":
    main(CHECKS)
