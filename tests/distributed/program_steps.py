"""The steps of random programs of collectives: what a rank does, and what all ranks hold then."""

from __future__ import annotations

import dataclasses
import functools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from bringup import graphs
from bringup.errors import CaptureError

ELEMENTS = 48
BUFFERS = ("a", "b", "c", "d")
Op = dist.ReduceOp
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint16, torch.uint32)
OTHERS = (torch.bool, torch.complex64, *UNSIGNED)
DTYPES = (*FLOATS, *INTEGERS, *OTHERS)

Buffers = dict[str, torch.Tensor]


@dataclass(frozen=True)
class View:
    """Some elements of a buffer.

    Attributes:
        buffer: its name.
        shape: of the view.
        strides: of the view.
        begin: number of its first element.
        is_copied: it is handed over as a copy, which nobody else holds.
    """

    buffer: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    begin: int
    is_copied: bool = False

    def of(self, buffers: Buffers) -> torch.Tensor:
        found = buffers[self.buffer].as_strided(self.shape, self.strides, self.begin)
        return found.clone() if self.is_copied else found


@dataclass(frozen=True)
class At:
    """Where a step runs.

    Attributes:
        buffers: of the rank.
        group: the group.
        rank: of the process within the group.
        size: of the group.
        is_async: whether the work is waited for later.
    """

    buffers: Buffers
    group: Any
    rank: int
    size: int
    is_async: bool

    @property
    def how(self) -> dict[str, Any]:
        return {"group": self.group, "async_op": self.is_async}


@dataclass(frozen=True)
class Step:
    """One step of a program.

    Attributes:
        run: does it in one rank; returns the works that are not over.
        want: does it to the buffers of all ranks of the group.
        views: what it reads and writes.
        group: number of the group.
        stream: number of the stream.
        is_async: whether works are waited for when a buffer is used next.
    """

    run: Callable[[At], Any]
    want: Callable[[list[Buffers]], object]
    views: Sequence[View]
    group: int = 0
    stream: int = 0
    is_async: bool = False


@dataclass
class Draw:
    """Draws what a step needs."""

    rng: random.Random
    dtype: torch.dtype
    size: int
    left: list[str] = field(default_factory=lambda: list(BUFFERS))

    def buffer(self) -> str:
        return self.left.pop(self.rng.randrange(len(self.left)))

    def shape(self, room: int) -> tuple[int, ...]:
        shapes = [(), (0,), (0, 3), (1,), (room // 2,), (2, room // 4), (room // 3,)]
        return self.rng.choice(shapes)

    def layout(self, shape: tuple[int, ...], buffer: str, begin: int, room: int) -> View:
        count = math.prod(shape)
        kinds = ["plain"] + ["wide"] * (2 * count <= room) + ["turned"] * (len(shape) == 2)
        kind = self.rng.choice(kinds)
        strides = list(torch.empty(shape, device="meta").stride())
        if kind == "wide":
            strides = [2 * stride for stride in strides]
        elif kind == "turned":
            strides = [1, shape[0]]
        return View(buffer, shape, tuple(strides), begin)

    def view(self, shape: tuple[int, ...] | None = None) -> View:
        begin = self.rng.choice((0, 0, 1, 5))
        room = ELEMENTS - begin
        return self.layout(self.shape(room) if shape is None else shape, self.buffer(), begin, room)

    def read(self, shape: tuple[int, ...] | None = None) -> View:
        view = self.view(shape)
        return View(**{**vars(view), "is_copied": self.rng.random() < 0.4})

    def parts(self, shape: tuple[int, ...], buffer: str | None = None) -> list[View]:
        """Return a view for each rank, which do not touch one another."""
        room = ELEMENTS // self.size
        name = buffer or self.buffer()
        return [self.layout(shape, name, rank * room, room) for rank in range(self.size)]

    def part_shape(self) -> tuple[int, ...]:
        return self.shape(ELEMENTS // self.size)

    def op(self) -> Any:
        ops = [Op.SUM, Op.SUM, Op.SUM]
        if self.dtype in FLOATS[:2]:
            ops += [Op.PRODUCT, dist._make_nccl_premul_sum(0.5)]
        if self.dtype in (*FLOATS, *INTEGERS):
            ops += [Op.AVG]
        if not self.dtype.is_complex:
            ops += [Op.MIN, Op.MAX]
        if self.dtype in (*INTEGERS, *UNSIGNED):
            ops += [Op.PRODUCT, Op.BAND, Op.BOR, Op.BXOR]
        return self.rng.choice(ops)


def _tamed(x: torch.Tensor, op: Any) -> None:
    """Make sums exact in any order."""
    if x.dtype in FLOATS:
        x.copy_(x.trunc().remainder(7))
    elif x.dtype in INTEGERS and op == Op.AVG:
        x.remainder_(7)


def _reduced(parts: list[torch.Tensor], op: Any) -> torch.Tensor:
    dtype = parts[0].dtype
    wide = torch.int64 if dtype in UNSIGNED or dtype == torch.bool else dtype
    stack = torch.stack(parts).to(wide)
    if op == Op.SUM:
        total = stack.sum(0, dtype=wide)
        return total.ne(0) if dtype == torch.bool else total.to(dtype)
    if op == Op.AVG:
        total = stack.sum(0, dtype=wide)
        return (
            total.div(len(parts))
            if dtype in FLOATS
            else total.div(len(parts), rounding_mode="trunc")
        )
    folds: dict[Any, Any] = {
        Op.PRODUCT: torch.mul,
        Op.MIN: torch.minimum,
        Op.MAX: torch.maximum,
        Op.BAND: torch.bitwise_and,
        Op.BOR: torch.bitwise_or,
        Op.BXOR: torch.bitwise_xor,
    }
    for known, fold in folds.items():
        if op == known:
            return functools.reduce(fold, stack.unbind()).to(dtype)
    return stack.mul(0.5).sum(0, dtype=wide)  # the scaled sum


def _all_reduce(draw: Draw) -> Step:
    x, op = draw.view(), draw.op()

    def run(at: At) -> Any:
        mine = x.of(at.buffers)
        _tamed(mine, op)
        return dist.all_reduce(mine, op, **at.how)

    def want(ranks: list[Buffers]) -> None:
        for buffers in ranks:
            _tamed(x.of(buffers), op)
        total = _reduced([x.of(buffers) for buffers in ranks], op)
        for buffers in ranks:
            x.of(buffers).copy_(total)

    return Step(run, want, [x])


def _coalesced(draw: Draw) -> Step:
    views = [draw.view() for _ in range(3)]

    def run(at: At) -> Any:
        mine = [view.of(at.buffers) for view in views]
        for one in mine:
            _tamed(one, Op.SUM)
        with dist._coalescing_manager(at.group, mine[0].device, async_ops=at.is_async) as manager:
            for one in mine:
                dist.all_reduce(one, group=at.group)
        return manager if at.is_async else None

    def want(ranks: list[Buffers]) -> None:
        for view in views:
            for buffers in ranks:
                _tamed(view.of(buffers), Op.SUM)
            total = _reduced([view.of(buffers) for buffers in ranks], Op.SUM)
            for buffers in ranks:
                view.of(buffers).copy_(total)

    return Step(run, want, views)


def functional_sum(draw: Draw) -> Step:
    shape = draw.shape(ELEMENTS // 2)
    source, target = draw.read(shape), draw.view(shape)

    def run(at: At) -> None:
        mine = source.of(at.buffers)
        target.of(at.buffers).copy_(functional.all_reduce(mine, "max", at.group))

    def want(ranks: list[Buffers]) -> None:
        total = _reduced([source.of(buffers) for buffers in ranks], Op.MAX)
        for buffers in ranks:
            target.of(buffers).copy_(total)

    return Step(run, want, [source, target])


def _broadcast(draw: Draw) -> Step:
    x, root = draw.view(), draw.rng.randrange(draw.size)

    def want(ranks: list[Buffers]) -> None:
        given = x.of(ranks[root]).clone()
        for buffers in ranks:
            x.of(buffers).copy_(given)

    return Step(lambda at: dist.broadcast(x.of(at.buffers), group_src=root, **at.how), want, [x])


def _reduce(draw: Draw) -> Step:
    x, op, root = draw.view(), draw.op(), draw.rng.randrange(draw.size)

    def run(at: At) -> None:
        mine = x.of(at.buffers)
        _tamed(mine, op)
        dist.reduce(mine, op=op, group_dst=root, group=at.group)
        if at.rank != root:
            mine.fill_(1)  # it was anything

    def want(ranks: list[Buffers]) -> None:
        for buffers in ranks:
            _tamed(x.of(buffers), op)
        total = _reduced([x.of(buffers) for buffers in ranks], op)
        for rank, buffers in enumerate(ranks):
            x.of(buffers).copy_(total) if rank == root else x.of(buffers).fill_(1)

    return Step(run, want, [x])


def _all_gather(draw: Draw) -> Step:
    shape = draw.part_shape()
    source, targets = draw.read(shape), draw.parts(shape)

    def run(at: At) -> Any:
        into = [view.of(at.buffers) for view in targets]
        return dist.all_gather(into, source.of(at.buffers), **at.how)

    def want(ranks: list[Buffers]) -> None:
        given = [source.of(buffers).clone() for buffers in ranks]
        for buffers in ranks:
            for view, value in zip(targets, given, strict=True):
                view.of(buffers).copy_(value)

    return Step(run, want, [source, *targets])


def _all_gather_into(draw: Draw) -> Step:
    rows = draw.rng.choice((0, 1, 2))
    target = draw.view((rows * draw.size, 4))
    source = draw.read((rows, 4)) if draw.rng.random() < 0.7 else None  # None: in place

    def run(at: At) -> Any:
        into = target.of(at.buffers)
        mine = into.chunk(at.size)[at.rank] if source is None else source.of(at.buffers)
        return dist.all_gather_into_tensor(into, mine, **at.how)

    def want(ranks: list[Buffers]) -> None:
        parts = [target.of(buffers).chunk(len(ranks))[i] for i, buffers in enumerate(ranks)]
        if source is not None:
            parts = [source.of(buffers) for buffers in ranks]
        whole = torch.cat(parts).clone()
        for buffers in ranks:
            target.of(buffers).copy_(whole)

    if source is None and rows == 0:
        return _all_reduce(draw)
    return Step(run, want, [target, *([source] if source else [])])


def _gather(draw: Draw) -> Step:
    shape, root = draw.part_shape(), draw.rng.randrange(draw.size)
    source, targets = draw.read(shape), draw.parts(shape)

    def run(at: At) -> Any:
        into = [view.of(at.buffers) for view in targets] if at.rank == root else None
        return dist.gather(source.of(at.buffers), into, group_dst=root, **at.how)

    def want(ranks: list[Buffers]) -> None:
        for view, buffers in zip(targets, ranks, strict=True):
            view.of(ranks[root]).copy_(source.of(buffers))

    return Step(run, want, [source, *targets])


def _scatter(draw: Draw) -> Step:
    shape, root = draw.part_shape(), draw.rng.randrange(draw.size)
    sources, target = draw.parts(shape), draw.view(shape)

    def run(at: At) -> Any:
        given = [view.of(at.buffers) for view in sources] if at.rank == root else None
        return dist.scatter(target.of(at.buffers), given, group_src=root, **at.how)

    def want(ranks: list[Buffers]) -> None:
        for view, buffers in zip(sources, ranks, strict=True):
            target.of(buffers).copy_(view.of(ranks[root]))

    return Step(run, want, [*sources, target])


def _reduce_scatter(draw: Draw) -> Step:
    shape, op = draw.part_shape(), draw.op()
    sources, target = draw.parts(shape), draw.view(shape)

    def run(at: At) -> Any:
        given = [view.of(at.buffers) for view in sources]
        for one in given:
            _tamed(one, op)
        return dist.reduce_scatter(target.of(at.buffers), given, op, **at.how)

    def want(ranks: list[Buffers]) -> None:
        for buffers in ranks:
            for view in sources:
                _tamed(view.of(buffers), op)
        for view, buffers in zip(sources, ranks, strict=True):
            target.of(buffers).copy_(_reduced([view.of(other) for other in ranks], op))

    return Step(run, want, [*sources, target])


def _reduce_scatter_whole(draw: Draw) -> Step:
    rows, op = draw.rng.choice((1, 2)), draw.op()
    source = draw.view((rows * draw.size, 4))
    target = draw.view((rows, 4)) if draw.rng.random() < 0.7 else None

    def run(at: At) -> Any:
        given = source.of(at.buffers)
        _tamed(given, op)
        if target is None:
            return dist.reduce_scatter_tensor(given.chunk(at.size)[at.rank], given, op, **at.how)
        return dist.reduce_scatter_tensor(target.of(at.buffers), given, op, **at.how)

    def want(ranks: list[Buffers]) -> None:
        for buffers in ranks:
            _tamed(source.of(buffers), op)
        total = _reduced([source.of(buffers) for buffers in ranks], op).chunk(len(ranks))
        for rank, buffers in enumerate(ranks):
            mine = source.of(buffers).chunk(len(ranks))[rank]
            (mine if target is None else target.of(buffers)).copy_(total[rank])

    return Step(run, want, [source, *([target] if target else [])])


def _all_to_all(draw: Draw) -> Step:
    counts = [[draw.rng.choice((0, 1, 2)) for _ in range(draw.size)] for _ in range(draw.size)]
    if draw.rng.random() < 0.3:
        counts = [[2] * draw.size for _ in range(draw.size)]
    columns, as_list = draw.rng.choice((1, 3)), draw.rng.random() < 0.5
    begin, name, other = draw.rng.choice((0, 2)), draw.buffer(), draw.buffer()

    def run(at: At) -> Any:
        sent = counts[at.rank]
        got = [row[at.rank] for row in counts]
        given = at.buffers[name][begin : begin + sum(sent) * columns].view(-1, columns)
        into = at.buffers[other][begin : begin + sum(got) * columns].view(-1, columns)
        if as_list:
            return dist.all_to_all(list(into.split(got)), list(given.split(sent)), **at.how)
        return dist.all_to_all_single(into, given, got, sent, **at.how)

    def want(ranks: list[Buffers]) -> None:
        sent = [
            buffers[name][begin : begin + sum(row) * columns].view(-1, columns).split(row)
            for buffers, row in zip(ranks, counts, strict=True)
        ]
        for rank, buffers in enumerate(ranks):
            whole = torch.cat([parts[rank] for parts in sent]).view(-1).clone()
            buffers[other][begin : begin + whole.numel()].copy_(whole)

    whole = (ELEMENTS,)
    return Step(run, want, [View(name, whole, (1,), 0), View(other, whole, (1,), 0)])


def _messages(draw: Draw) -> Step:
    shape = draw.shape(ELEMENTS // 2)
    source, target = draw.read(shape), draw.view(shape)
    by, tag, is_batch = draw.rng.randrange(1, draw.size), 0, draw.rng.random() < 0.5

    def run(at: At) -> Any:
        to, origin = (at.rank + by) % at.size, (at.rank - by) % at.size
        sent, into = source.of(at.buffers), target.of(at.buffers)
        if is_batch:
            pairs = [
                dist.P2POp(dist.isend, sent, group=at.group, tag=tag, group_peer=to),
                dist.P2POp(dist.irecv, into, group=at.group, tag=tag, group_peer=origin),
            ]
            works = dist.batch_isend_irecv(pairs)
        else:
            works = [
                dist.isend(sent, group=at.group, group_dst=to),
                dist.irecv(into, group=at.group, group_src=origin),
            ]
        for work in () if at.is_async else works:
            work.wait()
        return works

    def want(ranks: list[Buffers]) -> None:
        given = [source.of(buffers).clone() for buffers in ranks]
        for rank, buffers in enumerate(ranks):
            target.of(buffers).copy_(given[(rank - by) % len(ranks)])

    return Step(run, want, [source, target])


def _barrier(draw: Draw) -> Step:
    return Step(lambda at: dist.barrier(**at.how), lambda ranks: None, [])


def _own(draw: Draw) -> tuple[Callable[[Buffers, int], object], list[View]]:
    """Draw what a rank does alone."""
    kind = draw.rng.choice(("add", "copy", "copy", "copy", "fill"))
    if kind == "copy":
        shape = draw.shape(ELEMENTS // 2)
        source, target = draw.view(shape), draw.view(shape)
        return (
            lambda buffers, _: target.of(buffers).copy_(source.of(buffers), non_blocking=True),
            [source, target],
        )
    x, number = draw.view(), draw.rng.randrange(1, 4)
    if kind == "fill" or draw.dtype in OTHERS:
        return lambda buffers, rank: x.of(buffers).fill_(number + rank), [x]
    return lambda buffers, rank: x.of(buffers).add_(number + rank), [x]


def alone(draw: Draw) -> Step:
    act, views = _own(draw)

    def run(at: At) -> None:
        act(at.buffers, at.rank)

    return Step(run, lambda ranks: [act(one, rank) for rank, one in enumerate(ranks)], views)


def captured(draw: Draw) -> Step:
    times, parts = draw.rng.randrange(1, 4), []
    for kind in (alone, alone, alone, _all_reduce)[: draw.rng.choice((3, 4))]:
        draw.left = list(BUFFERS)
        parts.append(kind(draw))

    def run(at: At) -> None:
        once = dataclasses.replace(at, is_async=False)
        graph = graphs.CapturedGraph()
        repeat = graph.replay
        try:
            with graphs.capture(graph):
                for part in parts:
                    part.run(once)
        except CaptureError as refused:
            if "on the host" not in str(refused) and "could not be captured" not in str(refused):
                raise
            repeat = functools.partial(_run_all, parts, once)
        for _ in range(times):
            repeat()

    def want(ranks: list[Buffers]) -> None:
        for part in parts * times:
            part.want(ranks)

    return Step(run, want, [view for part in parts for view in part.views])


def _run_all(parts: Sequence[Step], at: At) -> None:
    for part in parts:
        part.run(at)


KINDS = (
    *[_all_reduce] * 3,
    _coalesced,
    functional_sum,
    _broadcast,
    _reduce,
    _all_gather,
    _all_gather_into,
    _gather,
    _scatter,
    _reduce_scatter,
    _reduce_scatter_whole,
    _all_to_all,
    _messages,
    _barrier,
    *[alone] * 5,
)
