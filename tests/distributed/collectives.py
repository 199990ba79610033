"""Every collective on tensors of the device, each value against what it has to be."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from tests.distributed.ranks import Check, Rank, main

from bringup import graphs, settings
from bringup.errors import CaptureError

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
    torch.complex64,
    torch.complex128,
)
SUM = dist.ReduceOp.SUM


def _there(me: Rank, value: float, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape or (5,), value).to(dtype).to(me.device)


def _is(tensor: torch.Tensor, value: float) -> bool:
    return torch.equal(tensor.cpu(), torch.full(tensor.shape, value).to(tensor.dtype))


def _total(me: Rank) -> int:
    return me.size * (me.size + 1) // 2


def sums_in_every_dtype(me: Rank) -> None:
    for dtype in DTYPES:
        x = _there(me, me.rank + 1, dtype=dtype)
        dist.all_reduce(x)
        assert _is(x, _total(me)), (dtype, x)


def broadcasts_in_every_dtype(me: Rank) -> None:
    for dtype in (*DTYPES, torch.float8_e4m3fn, torch.complex32):
        x = torch.full((3, 2), me.rank + 1.0).to(dtype).to(me.device)
        dist.broadcast(x, 1)
        want = torch.full((3, 2), 2.0).to(dtype)
        assert torch.equal(x.cpu().to(torch.complex64), want.to(torch.complex64)), dtype


def reductions_by_every_operation(me: Rank) -> None:
    wanted = {
        dist.ReduceOp.AVG: (me.size + 1) / 2,
        dist.ReduceOp.MAX: me.size,
        dist.ReduceOp.MIN: 1,
        dist.ReduceOp.PRODUCT: math.factorial(me.size),
    }
    for op, want in wanted.items():
        x = _there(me, me.rank + 1)
        dist.all_reduce(x, op)
        assert _is(x, want), (op, x)
    for op, want in ((dist.ReduceOp.BOR, 3), (dist.ReduceOp.BAND, 0), (dist.ReduceOp.BXOR, 3)):
        x = _there(me, min(me.rank + 1, 2) if me.rank < 2 else (0, 3)[op == dist.ReduceOp.BAND])
        x = x.to(torch.int16)
        dist.all_reduce(x, op)
        assert _is(x, want), (op, x)


def averages_of_integers_are_cut_off(me: Rank) -> None:
    x = torch.tensor([-1, 5], device=me.device) * (me.rank + 1)
    dist.all_reduce(x, dist.ReduceOp.AVG)
    total = _total(me)
    assert x.tolist() == [-(total // me.size), 5 * total // me.size]


def sums_of_scaled_inputs(me: Rank) -> None:
    for factor in (0.5, torch.tensor([0.5], device=me.device)):
        for dtype in (torch.float32, torch.bfloat16):
            x = _there(me, me.rank + 1, dtype=dtype)
            dist.all_reduce(x, dist._make_nccl_premul_sum(factor))
            assert _is(x, 0.5 * _total(me)), x


def what_is_not_computed_is_refused_in_words(me: Rank) -> None:
    refused = (
        (torch.float8_e4m3fn, SUM),
        (torch.bool, dist.ReduceOp.AVG),
        (torch.uint64, dist.ReduceOp.MAX),
        (torch.complex32, SUM),
        (torch.int32, dist._make_nccl_premul_sum(2.0)),
    )
    for dtype, op in refused:
        x = torch.ones(3).to(dtype).to(me.device)
        with pytest.raises(NotImplementedError, match="is not computed between processes"):
            dist.distributed_c10d._get_default_group().allreduce([x], _options(op)).wait()


def _options(op: dist.ReduceOp) -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    options.reduceOp = op
    return options


def lazily_negated_memory(me: Rank) -> None:
    """What a rank gets is what another sees, and not how it lies."""
    mine = torch.tensor([1 + 2j, 3 - 1j], device=me.device).conj().imag
    assert mine.is_neg()
    sent = mine if me.rank == 1 else torch.zeros_like(mine)
    dist.broadcast(sent, 1)
    assert sent.tolist() == [-2, 1]
    whole = torch.zeros(2 * me.size, device=me.device)
    dist.all_gather_into_tensor(whole, mine)
    assert whole.tolist() == [-2, 1] * me.size


def wrapped_integers(me: Rank) -> None:
    for dtype, value in ((torch.int16, 20_000), (torch.uint16, 60_000), (torch.uint32, 4e9)):
        x = torch.full((2,), int(value), dtype=torch.int64).to(dtype).to(me.device)
        dist.all_reduce(x)
        wide = torch.full((2,), int(value) * me.size, dtype=torch.int64)
        assert torch.equal(x.cpu(), wide.to(dtype)), x


def strided_and_broadcast_memory(me: Rank) -> None:
    whole = torch.zeros(4, 6, device=me.device)
    views: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
        lambda t: t.t(),
        lambda t: t[:, ::2],
        lambda t: t[1:3, 1:],
        lambda t: t[2],
    )
    for view in views:
        whole.fill_(me.rank + 1)
        part = view(whole)
        dist.all_reduce(part)
        assert _is(part, _total(me))
        assert whole.sum().item() == part.numel() * _total(me) + (24 - part.numel()) * (me.rank + 1)
    images = torch.ones(2, 3, 4, 4, device=me.device).to(memory_format=torch.channels_last)
    into = torch.zeros(2 * me.size, 3, 4, 4, device=me.device)
    dist.all_gather_into_tensor(into, images * (me.rank + 1))
    for rank in range(me.size):
        assert _is(into[2 * rank : 2 * rank + 2], rank + 1)


def no_elements_and_no_dimensions(me: Rank) -> None:
    empty = torch.zeros(0, 3, device=me.device)
    dist.all_reduce(empty)
    number = torch.tensor(me.rank + 1.0, device=me.device)
    dist.all_reduce(number)
    assert number.item() == _total(me)
    assert empty.shape == (0, 3)


def reduce_and_gather_to_one(me: Rank) -> None:
    x = _there(me, me.rank + 1)
    dist.reduce(x, 0)
    assert me.rank != 0 or _is(x, _total(me))
    lists = [_there(me, 0) for _ in range(me.size)] if me.rank == 0 else None
    dist.gather(_there(me, me.rank), lists, 0)
    assert all(_is(one, rank) for rank, one in enumerate(lists or ()))


def gather_to_all(me: Rank) -> None:
    for dtype in (torch.float32, torch.int16, torch.float8_e5m2):
        lists = [_there(me, 0, dtype=dtype) for _ in range(me.size)]
        dist.all_gather(lists, _there(me, me.rank, dtype=dtype))
        whole = torch.zeros(me.size, 5, device=me.device).to(dtype)
        dist.all_gather_into_tensor(whole, _there(me, me.rank, dtype=dtype))
        for rank, one in enumerate(lists):
            assert one.cpu().float().eq(rank).all()
            assert whole[rank].cpu().float().eq(rank).all()


def scatter_from_one(me: Rank) -> None:
    x = _there(me, -1)
    dist.scatter(x, [_there(me, rank) for rank in range(me.size)] if me.rank == 0 else None, 0)
    assert _is(x, me.rank)


def reduce_and_scatter(me: Rank) -> None:
    want = me.size * me.rank + me.size * (me.size - 1) // 2
    for dtype in (torch.float32, torch.int16, torch.complex64):
        parts = [_there(me, part + me.rank, dtype=dtype) for part in range(me.size)]
        x = _there(me, 0, dtype=dtype)
        dist.reduce_scatter(x, parts)
        assert _is(x, want), x
        y = _there(me, 0, dtype=dtype)
        dist.reduce_scatter_tensor(y, torch.cat(parts))
        assert _is(y, want), y
        if dtype != torch.int16:
            dist.reduce_scatter_tensor(y, torch.cat(parts), op=dist.ReduceOp.AVG)
            assert _is(y, want / me.size), y


def uneven_parts_reduced(me: Rank) -> None:
    parts = [_there(me, me.rank, rank + 1) for rank in range(me.size)]
    x = _there(me, -1, me.rank + 1)
    dist.reduce_scatter(x, parts)
    assert _is(x, me.size * (me.size - 1) // 2)
    with pytest.raises(ValueError, match="parts of the output's 3 elements"):
        dist.reduce_scatter_tensor(_there(me, 0, 3), _there(me, 0, 3 * me.size + 1))


def all_to_all_of_one_tensor(me: Rank) -> None:
    for dtype in (torch.float32, torch.int16):
        x = torch.zeros(me.size, 2, dtype=dtype, device=me.device)
        mine = torch.arange(me.size).to(dtype).view(-1, 1).expand(-1, 2) + 10 * me.rank
        dist.all_to_all_single(x, mine.to(me.device))
        assert x[:, 1].tolist() == [10 * rank + me.rank for rank in range(me.size)]


def all_to_all_with_splits(me: Rank) -> None:
    for dtype in (torch.float32, torch.uint16):
        counts = [rank + 1 for rank in range(me.size)]
        sent = torch.cat([torch.full((n,), 10 * me.rank + n - 1) for n in counts]).to(dtype)
        got = torch.zeros(me.size * (me.rank + 1), dtype=dtype, device=me.device)
        dist.all_to_all_single(got, sent.to(me.device), [me.rank + 1] * me.size, counts)
        want = [10 * rank + me.rank for rank in range(me.size) for _ in range(me.rank + 1)]
        assert got.tolist() == want


def all_to_all_of_lists(me: Rank) -> None:
    for dtype in (torch.float32, torch.int16):
        got = [_there(me, 0, me.rank + 1, dtype=dtype) for _ in range(me.size)]
        sent = [_there(me, 10 * me.rank + n, n + 1, dtype=dtype) for n in range(me.size)]
        dist.all_to_all(got, sent)
        assert all(_is(one, 10 * rank + me.rank) for rank, one in enumerate(got))


def sends_before_receives(me: Rank) -> None:
    to, source = (me.rank + 1) % me.size, (me.rank - 1) % me.size
    for dtype in (torch.float32, torch.int16):
        x, y = _there(me, me.rank, dtype=dtype), _there(me, -1, dtype=dtype)
        sent = dist.isend(x, to)
        received = dist.irecv(y, source)
        received.wait()
        sent.wait()
        assert _is(y, source)
        operations = [dist.P2POp(dist.isend, x, to), dist.P2POp(dist.irecv, y.zero_(), source)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        assert _is(y, source)


def received_from_anybody(me: Rank) -> None:
    if me.rank == 1:
        dist.send(_there(me, 7), 0)
    elif me.rank == 0:
        x = _there(me, 0)
        assert dist.recv(x) == 1
        assert _is(x, 7)


def objects(me: Rank) -> None:
    gathered: list[object] = [None] * me.size
    dist.all_gather_object(gathered, {"rank": me.rank, "x": _there(me, me.rank).cpu()})
    assert [one["rank"] for one in gathered] == list(range(me.size))  # type: ignore[index]
    given = [me.rank]
    dist.broadcast_object_list(given, 1)
    assert given == [1]


def coalesced(me: Rank) -> None:
    device = torch.device(me.device, 0)
    sums = [_there(me, me.rank + i) for i in range(3)]
    with dist._coalescing_manager(device=device, async_ops=True) as group:
        for one in sums:
            dist.all_reduce(one)
    group.wait()
    base = me.size * (me.size - 1) // 2
    assert all(_is(one, base + me.size * i) for i, one in enumerate(sums))
    wholes = [torch.zeros(me.size, 5, device=me.device) for _ in range(2)]
    with dist._coalescing_manager(device=device, async_ops=True) as group:
        for whole in wholes:
            dist.all_gather_into_tensor(whole, _there(me, me.rank))
    group.wait()
    assert all(_is(whole[rank], rank) for whole in wholes for rank in range(me.size))
    outs = [_there(me, 0) for _ in range(2)]
    with dist._coalescing_manager(device=device, async_ops=True) as group:
        for i, out in enumerate(outs):
            dist.reduce_scatter_tensor(out, _there(me, i + 1, 5 * me.size))
    group.wait()
    assert all(_is(out, me.size * (i + 1)) for i, out in enumerate(outs))


def coalesced_in_several_dtypes(me: Rank) -> None:
    dtypes = (torch.float32, torch.int16, torch.bfloat16, torch.float32, torch.bool)
    sums = [_there(me, me.rank + 1, dtype=dtype) for dtype in dtypes]
    summed = functional.all_reduce_coalesced(sums, "sum", dist.group.WORLD)
    assert all(_is(one, _total(me)) for one in summed), summed
    parts = [_there(me, me.rank, dtype=dtype) for dtype in dtypes[:4]]
    for whole in functional.all_gather_into_tensor_coalesced(parts, dist.group.WORLD):
        assert all(_is(part, rank) for rank, part in enumerate(whole.chunk(me.size))), whole
    wholes = [_there(me, i + 1, 5 * me.size, dtype=dtype) for i, dtype in enumerate(dtypes[:4])]
    scattered = functional.reduce_scatter_tensor_coalesced(wholes, "sum", [0] * 4, dist.group.WORLD)
    for i, part in enumerate(scattered):
        assert part.dtype == dtypes[i]
        assert _is(part, me.size * (i + 1)), part
    parts = [_there(me, me.rank + i, i + 1, dtype=dtype) for i, dtype in enumerate(dtypes)]
    lists = [[torch.full_like(part, 0) for part in parts] for _ in range(me.size)]
    dist.group.WORLD.allgather_coalesced(lists, parts).wait()
    for rank, found in enumerate(lists):
        assert all(_is(one, rank + i) for i, one in enumerate(found)), lists


def futures(me: Rank) -> None:
    x = _there(me, me.rank + 1)
    doubled = dist.all_reduce(x, async_op=True).get_future().then(lambda f: f.value()[0] * 2)
    assert _is(doubled.wait(), 2 * _total(me))
    work = dist.all_reduce(x, async_op=True)
    work.wait()  # of the stream, which the host need not have seen
    assert _is(x, me.size * _total(me))
    assert work.is_completed()
    assert work.is_success()


def works_that_nobody_waits_for(me: Rank) -> None:
    x = _there(me, me.rank + 1)
    dist.all_reduce(x, async_op=True)
    end = time.monotonic() + 10
    while not _is(x, _total(me)) and time.monotonic() < end:
        torch.accelerator.synchronize()
    assert _is(x, _total(me))


def groups_of_some_ranks(me: Rank) -> None:
    some = dist.new_group([0, 1])
    if me.rank < 2:
        x = _there(me, 1)
        dist.all_reduce(x, group=some)
        assert _is(x, 2)
        dist.barrier(group=some)


def functional_collectives(me: Rank) -> None:
    group = dist.group.WORLD
    assert _is(functional.all_reduce(_there(me, me.rank + 1), "sum", group), _total(me))
    gathered = functional.all_gather_tensor(_there(me, me.rank), 0, group)
    assert _is(gathered[-5:], me.size - 1)


def tensors_of_other_devices(me: Rank) -> None:
    x = torch.ones(3)
    if me.backend == "bringup":
        with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
            dist.all_reduce(x)
    else:
        dist.all_reduce(x)
        assert _is(x, me.size)


def two_devices_of_a_process(me: Rank) -> None:
    index = me.rank % torch.accelerator.device_count()
    x = torch.full((4,), me.rank + 1.0, device=f"{me.device}:{index}")
    dist.all_reduce(x)
    assert _is(x, _total(me))


def _summed(me: Rank, x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x)
    return x


def _gathered(me: Rank, x: torch.Tensor) -> torch.Tensor:
    whole = torch.empty(me.size * x.numel(), device=x.device)
    dist.all_gather_into_tensor(whole, x, async_op=True).wait()
    return whole


def _scattered(me: Rank, x: torch.Tensor) -> torch.Tensor:
    part = torch.empty(x.numel() // me.size, device=x.device)
    dist.reduce_scatter_tensor(part, x)
    dist.broadcast(part, 1)
    return part


def _exchanged(me: Rank, x: torch.Tensor) -> torch.Tensor:
    y, z = both = torch.empty(2, *x.shape, device=x.device)
    dist.all_to_all_single(y, x)
    dist.all_to_all(list(z.chunk(me.size)), list(y.chunk(me.size)))
    dist.all_reduce(y)
    return both


def captured_ones_are_replayed_or_refused_in_words(me: Rank) -> None:
    for call in (_summed, _gathered, _scattered, _exchanged):
        graph, x = graphs.CapturedGraph(), torch.zeros(2 * me.size, device=me.device)
        given = torch.arange(2 * me.size, dtype=torch.float32) + me.rank
        if not settings.collectives() or me.device != "npu":  # OpenCL has none
            with pytest.raises(CaptureError, match="on the host"), graphs.capture(graph):
                call(me, x)
            continue
        with graphs.capture(graph):
            y = call(me, x)
        for turn in range(3):
            x.copy_(given + turn)
            graph.replay()
            want = call(me, (given + turn).to(me.device)).cpu()
            assert torch.equal(y.cpu(), want), (call, turn, y, want)
    x = torch.ones(3, dtype=torch.bfloat16, device=me.device)  # of which the driver has none
    with pytest.raises(CaptureError, match="on the host"), graphs.capture(graphs.CapturedGraph()):
        _summed(me, x)
    parts = [torch.zeros(3, dtype=x.dtype, device=me.device) for _ in range(me.size)]
    if settings.collectives() and me.device == "npu":  # which moves bytes
        graph = graphs.CapturedGraph()
        with graphs.capture(graph):
            dist.all_gather(parts, x)
        x.fill_(me.rank + 2)
        graph.replay()
        assert all(_is(part, rank + 2) for rank, part in enumerate(parts)), parts
    else:
        with pytest.raises(CaptureError), graphs.capture(graphs.CapturedGraph()):
            dist.all_gather(parts, x)
    turned = torch.ones(2, 3, dtype=torch.int8, device=me.device).t()  # which the host copies
    with pytest.raises(CaptureError), graphs.capture(graphs.CapturedGraph()):
        _summed(me, turned)
    assert _is(_summed(me, turned), me.size)  # the group goes on


def those_between_pieces_of_a_graph_are_called_by_each_replay(me: Rank) -> None:
    if not torch.get_device_module(me.device).get_device_properties(0).host_visible_memory:
        return  # what is captured around them falls back
    for call in (_summed, _gathered, _scattered, _exchanged):
        graph, x = graphs.CapturedGraph(), torch.zeros(2 * me.size, device=me.device)
        with graphs.capture(graph, split_at=lambda op, args, kwargs: op.namespace == "c10d"):
            y = call(me, x * 2 + me.rank) - 1
        assert any(piece.then.startswith("c10d") for piece in graph.pieces)
        for turn in range(3):
            x.fill_(turn + me.rank)
            graph.replay()
            assert torch.equal(y.cpu(), (call(me, x * 2 + me.rank) - 1).cpu()), (call, turn, y)


def split_groups(me: Rank) -> None:
    if torch.distributed.group.WORLD.bound_device_id is None:
        return
    pair = dist.split_group(split_ranks=[[0, 1]])
    if me.rank < 2:
        x = _there(me, me.rank + 1)
        dist.all_reduce(x, group=pair)
        assert _is(x, 3)


CHECKS: tuple[Check, ...] = (
    sums_in_every_dtype,
    broadcasts_in_every_dtype,
    reductions_by_every_operation,
    averages_of_integers_are_cut_off,
    sums_of_scaled_inputs,
    what_is_not_computed_is_refused_in_words,
    lazily_negated_memory,
    wrapped_integers,
    strided_and_broadcast_memory,
    no_elements_and_no_dimensions,
    reduce_and_gather_to_one,
    gather_to_all,
    scatter_from_one,
    reduce_and_scatter,
    uneven_parts_reduced,
    all_to_all_of_one_tensor,
    all_to_all_with_splits,
    all_to_all_of_lists,
    sends_before_receives,
    received_from_anybody,
    objects,
    coalesced,
    coalesced_in_several_dtypes,
    futures,
    works_that_nobody_waits_for,
    groups_of_some_ranks,
    functional_collectives,
    tensors_of_other_devices,
    two_devices_of_a_process,
    captured_ones_are_replayed_or_refused_in_words,
    those_between_pieces_of_a_graph_are_called_by_each_replay,
    split_groups,
)

if __name__ == "__main__":
    main(CHECKS)
