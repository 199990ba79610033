"""Every operator that level 2 of a replay writes, bit for bit against torch: all values of half
types, random and special ones of others, every length up to 65, strided and broadcast memory.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from tests.sweeps.support import part, seed, sized
from torch import Tensor

from bringup import graphs
from bringup.graphs import _fuse
from bringup.graphs._fuse_build import compile_bodies

HALVES = (torch.float16, torch.bfloat16)
DTYPES = (torch.float32, torch.float64, *HALVES)
BLOCK = 64
VALUES = sized(100_000, 10_000_000)  # of float32 and float64
SPECIAL = (0.0, -0.0, 1.0, float("inf"), -float("inf"), float("nan"), 1e-40, -1e-310, 3e38, 65504.0)
SCALARS = (0.1, -1.7, 3)

# Each writes one operator once, on x, y and whether to take x.
ONE: dict[str, list[Callable[[Tensor, Tensor, Tensor], Tensor]]] = {
    "add.Tensor": [lambda x, y, c: x + y, *(lambda x, y, c, s=s: x + s for s in SCALARS)],
    "sub.Tensor": [lambda x, y, c: x - y, *(lambda x, y, c, s=s: x - s for s in SCALARS)],
    "mul.Tensor": [lambda x, y, c: x * y, *(lambda x, y, c, s=s: x * s for s in SCALARS)],
    "div.Tensor": [lambda x, y, c: x / y, *(lambda x, y, c, s=s: x / s for s in SCALARS)],
    "maximum": [lambda x, y, c: torch.maximum(x, y)],
    "minimum": [lambda x, y, c: torch.minimum(x, y)],
    "neg": [lambda x, y, c: -x],
    "abs": [lambda x, y, c: x.abs()],
    "relu": [lambda x, y, c: x.relu()],
    "clamp_min": [*(lambda x, y, c, s=s: torch.clamp_min(x, s) for s in (*SCALARS, 0.0, -0.0))],
    "clamp_max": [*(lambda x, y, c, s=s: torch.clamp_max(x, s) for s in (*SCALARS, 0.0, -0.0))],
    "clamp": [
        lambda x, y, c: x.clamp(-0.3, 1.1),
        lambda x, y, c: x.clamp(2, -2),
        lambda x, y, c: x.clamp(min=0.1),
        lambda x, y, c: x.clamp(max=0.1),
    ],
    **{
        f"{name}.{kind}": (
            [lambda x, y, c, f=f: f(x, y)]
            if kind == "Tensor"
            else [*(lambda x, y, c, f=f, s=s: f(x, s) for s in (*SCALARS, 0))]
        )
        for name, f in {
            "eq": torch.eq,
            "ne": torch.ne,
            "lt": torch.lt,
            "le": torch.le,
            "gt": torch.gt,
            "ge": torch.ge,
        }.items()
        for kind in ("Tensor", "Scalar")
    },
    "where.self": [lambda x, y, c: torch.where(c, x, y)],
    "copy": [lambda x, y, c: torch.empty_like(y).copy_(x)],
    "clone": [lambda x, y, c: x.clone()],
    "_to_copy": [*(lambda x, y, c, d=d: x.to(d, copy=True) for d in DTYPES)],
    "fill.Scalar": [lambda x, y, c: torch.empty_like(x).fill_(0.1)],
    "zero": [lambda x, y, c: torch.empty_like(x).zero_()],
}
ALPHA = [lambda x, y, c: torch.add(x, y, alpha=0.3), lambda x, y, c: torch.sub(x, y, alpha=-1.7)]


class Functions:
    """Each call of a program as a function, and level 0 of the same program."""

    def __init__(
        self, x: Tensor, y: Tensor, program: Callable[..., list[Tensor]], patch: pytest.MonkeyPatch
    ) -> None:
        self.x, self.y, self.c = x, y, torch.zeros(x.shape, dtype=torch.bool)
        self.graph = graphs.CapturedGraph(optimize=0)
        with torch.no_grad(), graphs.capture(self.graph):
            self.results = program(x, y, self.c)
        patch.setattr(_fuse, "_MOST_NODES", 1)
        patch.setattr(_fuse, "MOST_ELEMENTS", {})
        rows, _, _ = self.graph._content.native.fusable()
        self.groups, self.reasons = _fuse.groups_of(rows)
        written = [_fuse.Writer(group, set()).write() for group in self.groups]
        address, size = ctypes.c_void_p, ctypes.c_int64
        type_ = ctypes.CFUNCTYPE(ctypes.c_int32, address, address, size, size)
        self.functions = [type_(one) for one in compile_bodies([one.body for one in written])]
        self.tables = [
            (
                (ctypes.c_uint64 * len(one.addresses))(*one.addresses),
                (ctypes.c_double * len(one.numbers))(*(n.value for n in one.numbers)),
                0,
                one.turns,
            )
            for one in written
        ]
        self.results_by_address = {one.data_ptr(): one for one in self.results}

    def compare(self, x: Tensor, y: Tensor, counts: Counter[str]) -> None:
        """Compare all functions on these values."""
        self.x.copy_(x)
        self.y.copy_(y)
        self.c.copy_(self.x > self.y)
        self.graph.replay()
        expected = {address: _bits(one) for address, one in self.results_by_address.items()}
        for one in self.results:
            one.fill_(1)
        for group, function, table in zip(self.groups, self.functions, self.tables, strict=True):
            (call,) = group.calls
            name = f"{self.x.dtype} {call.name}"
            if function(*table):
                counts[f"{name} unsure"] += 1
                continue
            counts[name] += 1
            result = self.results_by_address[call.result.address]
            same = torch.equal(_bits(result), expected[call.result.address])
            assert same, (name, call.numbers, self.x, self.y, result)


def _bits(x: Tensor) -> Tensor:
    return x.contiguous().view(-1).view(torch.uint8).clone()


def _every_operator(x: Tensor, y: Tensor, c: Tensor) -> list[Tensor]:
    calls = [one for name in _fuse.RULES for one in ONE[name]]
    return [one(x, y, c) for one in calls + (ALPHA if x.dtype not in HALVES else [])]


def _values(dtype: torch.dtype) -> Tensor:
    """Return values in a random order: of half types all."""
    if dtype in HALVES:
        every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
        return every[torch.randperm(len(every))]
    some = torch.randn(VALUES, dtype=dtype)
    wide = some * torch.exp2(torch.randint(-40, 40, some.shape).to(dtype))
    special = torch.tensor(SPECIAL, dtype=dtype)
    picked = special[torch.randint(0, len(SPECIAL), some.shape)]
    kind = torch.rand(some.shape)
    return torch.where(kind < 0.5, some, torch.where(kind < 0.999, wide, picked))


def _some_nan(size: int, dtype: torch.dtype) -> Tensor:
    """Return NaN of every sign and payload, signalling ones, and infinities, among numbers."""
    whole = torch.int32 if dtype == torch.float32 else torch.int64
    bits = torch.iinfo(whole)
    infinity = torch.tensor(float("inf"), dtype=dtype).view(whole)
    found = torch.randint(bits.min, bits.max, (size,), dtype=whole)
    return torch.where(torch.rand(size) < 0.3, found | infinity, found).view(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_operator_gives_the_bits_of_torch(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, sweep_counts: Counter[str]
) -> None:
    torch.manual_seed(0)
    size = BLOCK if dtype in HALVES else 1024  # a block with a NaN says nothing
    functions = Functions(
        torch.zeros(size, dtype=dtype), torch.ones(size, dtype=dtype), _every_operator, monkeypatch
    )
    nodes = zip(functions.graph.nodes, functions.reasons, strict=True)
    left = [(node.op, reason) for node, reason in nodes if reason]
    assert not left
    assert {group.calls[0].rule for group in functions.groups} >= {*_fuse.RULES.values()}
    counts: Counter[str] = Counter()
    x, y = _values(dtype), _values(dtype)
    first = x[: len(x) // size * size].split(size)
    # NaN next to NaN, so that other blocks have none.
    second = y[y.isnan().to(torch.int8).argsort(stable=True)][: len(first) * size].split(size)
    ordered = x[x.isnan().to(torch.int8).argsort(stable=True)][: len(first) * size].split(size)
    for one, other in zip(ordered, second, strict=True):
        functions.compare(one, other, counts)
        functions.compare(one.abs(), torch.where(torch.rand(size) < 0.3, one, other).abs(), counts)
    for values in ((0.0, -0.0), SCALARS):  # where results of comparisons turn
        some = torch.tensor(values, dtype=dtype)
        pair = [some[torch.randint(0, len(values), (size,))] for _ in range(2)]
        functions.compare(*pair, counts)
    for _ in range(10 if dtype not in HALVES else 0):
        functions.compare(_some_nan(size, dtype), _some_nan(size, dtype), counts)
    sweep_counts.update(counts)
    for group in functions.groups:
        assert counts[f"{dtype} {group.calls[0].name}"] > len(first) / 2, counts


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_length_and_layout_gives_the_bits_of_torch(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, sweep_counts: Counter[str]
) -> None:
    def program(x: Tensor, y: Tensor, _: Tensor) -> list[Tensor]:
        made = []
        for n in part(range(1, 66), always=(1, 3, 8, 16, 17, 31, 33, 64, 65)):
            a, b = x[:n], y[:n]
            made += [
                a + b,
                a * 0.3,
                a.relu(),
                torch.maximum(a, b),
                a < b,
                a.to(torch.bfloat16, copy=True),
                *([torch.sub(a, b, alpha=0.3), a / 0.3] if dtype not in HALVES else []),
                *([torch.sub(a, s, alpha=0.3) for s in (0.7, b[0])] if dtype not in HALVES else []),
            ]
        square, other = x[:64].view(8, 8), y[:64].view(8, 8)
        for a, b in (
            (square.t(), other), (square[::2, 1::3], other[:4, :3]), (square, other[:1]),
            (square[:, :1], other), (square[0, 0], other), (square.t()[1:], other.t()[:-1]),
        ):  # fmt: skip
            target = torch.empty(torch.broadcast_shapes(a.shape, b.shape), dtype=dtype)
            made += [a + b, a / b, c := a > b, torch.where(c, a, b), a.clone(), target.copy_(a)]
        return made

    torch.manual_seed(0)
    functions = Functions(
        torch.zeros(65, dtype=dtype), torch.ones(65, dtype=dtype), program, monkeypatch
    )
    assert not [reason for reason in functions.reasons if reason and "argument" not in reason]
    counts: Counter[str] = Counter()
    for _ in range(sized(20, 400)):
        functions.compare(torch.randn(65).to(dtype), torch.randn(65).to(dtype), counts)
    # torch rounds a number times alpha or not, as its tensors lie in memory.
    assert not [name for name in counts if "unsure" in name and "sub" not in name]
    for _ in range(sized(3, 100) if dtype not in HALVES else 0):
        functions.compare(_some_nan(65, dtype), _some_nan(65, dtype), counts)
    sweep_counts.update(counts)


ONE_TENSOR: list[Callable[[Tensor, float], Tensor]] = [
    lambda x, n: x * n,
    lambda x, n: x + n,
    lambda x, n: x / n,
    lambda x, n: x - n,
    lambda x, n: x.relu(),
    lambda x, n: x.clamp(min=n),
    lambda x, n: x.mul_(n),
    lambda x, n: x.add_(n),
    lambda x, n: x.clamp_(-abs(n), abs(n)),
    lambda x, n: x.clone(),
    lambda x, n: torch.maximum(x, x),
    lambda x, n: torch.minimum(x, x),
    lambda x, n: x * x,
    lambda x, n: x + x,
    lambda x, n: x - x,
    lambda x, n: x / x,
]
NUMBERS = (0.1, -1.7, 3.0, -0.0, 1e30, float("inf"))


def test_functions_of_operators_of_one_tensor_give_every_nan_as_torch_does() -> None:
    draw = Random(seed())
    twice = [(lambda x, n: torch.maximum(x, x), 0.0), (lambda x, n: x.clone(), 0.0)]
    for number in range(sized(4, 300)):
        chain = [(draw.choice(ONE_TENSOR), draw.choice(NUMBERS)) for _ in range(draw.randint(3, 8))]
        chain = chain if number > 0 else twice
        size = draw.choice((1, 8, 33, 65, 9000, 70000))
        dtype = draw.choice((torch.float32, torch.float64))
        x, graph = _some_nan(size, dtype), graphs.CapturedGraph(optimize=2)

        def run(chain: Any = chain, x: Tensor = x) -> Tensor:
            for operator, one in chain:
                x = operator(x, one)
            return x

        with graphs.capture(graph):
            result = run()
        assert graph.wait_for_functions(60)
        for _ in range(2):
            fresh = _some_nan(size, dtype)
            x.copy_(fresh)
            graph.replay()
            replayed = _bits(result), _bits(x)
            x.copy_(fresh)
            assert torch.equal(replayed[0], _bits(run())), (dtype, size, chain)
            assert torch.equal(replayed[1], _bits(x))
        if size <= 4096:  # of more elements a short function is no faster
            assert {node.level for node in graph.levels()} == {2}, graph.levels()
