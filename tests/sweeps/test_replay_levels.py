"""Random programs captured at every level: replays on new inputs give the bits of eager.

Programs are of many operators, dtypes and layouts, and write in place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

import pytest
import torch
from tests.sweeps.support import sized
from torch import Tensor

from bringup import devices, graphs
from bringup.graphs._handlers import handlers_of_block

PROGRAMS = sized(50, 1000)
PARTS = 2
STEPS = 12
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SPECIAL = (float("nan"), float("inf"), -float("inf"), -0.0, 1e-40, 3e38)

UNARY: list[Callable[[Tensor], Tensor]] = [
    torch.relu,
    torch.neg,
    torch.exp,
    torch.tanh,
    torch.sigmoid,
    torch.sqrt,
    torch.erf,
    torch.nn.functional.gelu,
    torch.nn.functional.silu,
    lambda x: x * 0.5,
    lambda x: 2 - x,
    lambda x: torch.softmax(x, -1),
    lambda x: torch.log_softmax(x, 0),
    lambda x: x.cumsum(0),
    lambda x: x.sum(-1, keepdim=True),
    lambda x: x.mean(0, keepdim=True),
    lambda x: x.amax(-1, keepdim=True),
    lambda x: x.t().contiguous(),
    lambda x: x.t(),
    lambda x: x[::2],
    lambda x: x.to(torch.float32).to(x.dtype),
    lambda x: x.to(torch.float64).to(x.dtype),
    lambda x: x.clone(),
    torch._neg_view,
    lambda x: torch.where(x > 0, x, 0),
    lambda x: (x > 0).to(x.dtype),
    lambda x: x.tril(),
    lambda x: x.gather(1, x.argmax(-1, keepdim=True)),
]
BINARY: list[Callable[[Tensor, Tensor], Tensor]] = [
    torch.add,
    torch.sub,
    torch.mul,
    torch.div,
    torch.maximum,
    torch.minimum,
    torch.atan2,
    lambda x, y: torch.add(x, y, alpha=2),
    lambda x, y: torch.where(x < y, x, y),
    lambda x, y: x.clone().add_(y),
    lambda x, y: x.clone().mul_(2).sub_(y),
    lambda x, y: x.clone().copy_(y),
    lambda x, y: torch.remainder(x, y),
    lambda x, y: x.double().add(y).to(x.dtype),
    lambda x, y: x + y.to(torch.int64).tril(),
]
NUMBERED: dict[str, tuple[str, Callable[[Tensor, Tensor, float], Tensor]]] = {
    "leaky_relu": ("negative_slope", lambda x, _, a: torch.nn.functional.leaky_relu(x, a)),
    "clamp": ("min", lambda x, _, a: torch.clamp(x, a, 1)),
    "pow": ("exponent", lambda x, _, a: torch.pow(x, a)),
    "addcmul": ("value", lambda x, y, a: torch.addcmul(x, y, x, value=a)),
    "lerp": ("weight", lambda x, y, a: torch.lerp(x, y, a)),
}
"""Operators with a number that updates write: the name of their argument, and a call."""
PRODUCTS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda x, y: x @ y.t(),
    lambda x, y: torch.addmm(x[:, :1], x, y.t()),
    lambda x, y: torch.bmm(x[None], y.t()[None])[0],
    lambda x, y: torch.baddbmm(x[:, :1], x[None], y.t()[None])[0],
]


class Program:
    """Steps over matrices, of which the first are inputs."""

    def __init__(self, random: Random, device: str) -> None:
        self.rows, self.columns = random.choice([1, 3, 8, 17]), random.choice([1, 5, 16, 33])
        dtype = random.choice(FLOATS)
        self.inputs = [
            self.layout(random, torch.randn(self.rows, self.columns).to(dtype)).to(device)
            for _ in range(3)
        ]
        self.steps = [[random.random() for _ in range(4)] for _ in range(STEPS)]
        self.numbers = [0.5] * STEPS

    def layout(self, random: Random, x: Tensor) -> Tensor:
        """The same values in another layout."""
        kind = random.randrange(4)
        if kind == 1:
            return x.t().contiguous().t()
        if kind == 2:
            return torch.stack([x, x], -1)[..., 0]
        return x[:1].expand_as(x) if kind == 3 else x

    def change(self, random: Random) -> None:
        """New numbers, some of them special."""
        self.numbers = [random.choice([2, 0.5, -1.5, 0, 3]) for _ in range(STEPS)]
        for x in self.inputs:
            fresh = torch.randn(x.shape)
            fresh[random.randrange(self.rows), random.randrange(self.columns)] = random.choice(
                SPECIAL
            )
            (x[:1] if x.stride(0) == 0 else x).copy_(fresh[:1] if x.stride(0) == 0 else fresh)

    def run(self) -> list[Tensor]:
        """Return all that it computes."""
        made = list(self.inputs)
        self.slots: dict[str, float] = {}
        used = Counter[str]()
        for number, (kind, which, first, second) in zip(self.numbers, self.steps, strict=True):
            x, y = made[int(first * len(made))], made[int(second * len(made))]
            if kind > 0.85:
                name = list(NUMBERED)[int(which * len(NUMBERED))]
                slot, call = NUMBERED[name]
                made.append(call(x, y if x.shape == y.shape else x, number))
                self.slots[f"{name}.{used[name]}.{slot}"] = number
                used[name] += 1
            elif kind < 0.1 and x.shape[1] == y.shape[1]:
                made.append(PRODUCTS[int(which * len(PRODUCTS))](x, y))
            elif kind < 0.55 and x.shape == y.shape:
                made.append(BINARY[int(which * len(BINARY))](x, y))
            else:
                made.append(UNARY[int(which * len(UNARY))](x))
        return made[len(self.inputs) :]


def _same(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return all(torch.equal(_bits(a), _bits(b)) for a, b in zip(ours, theirs, strict=True))


def _bits(x: Tensor) -> Tensor:
    return x.cpu().clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)


@pytest.fixture(autouse=True)
def updatable() -> Iterator[None]:
    """Numbers of these operators are slots."""
    with handlers_of_block():
        for name, (slot, _) in NUMBERED.items():
            body = {"UPDATE_SPECS": {name: [("kwarg", slot, slot)]}}
            graphs.register_graph_handler(name)(type("Numbered", (graphs.GraphOpHandler,), body))
        yield


@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize("part", range(PARTS))
def test_replays_of_every_level_give_what_eager_gives(
    part: int, device: str, sweep_counts: Counter[str]
) -> None:
    if device == "npu":
        devices.load_driver("sim")
    for seed in range(part, PROGRAMS, PARTS):
        random = Random(seed)
        torch.manual_seed(seed)
        program = Program(random, device)
        captured = []
        for level in (0, 1):
            graph = graphs.CapturedGraph(optimize=level)
            with torch.no_grad(), graphs.capture(graph):
                results = program.run()
            captured.append((graph, results))
        assert {node.level for node in captured[0][0].levels()} == {0}
        for node in captured[1][0].levels():
            sweep_counts[f"{device}, level {node.level}"] += 1
        for _ in range(3):
            program.change(random)
            with torch.no_grad():
                expected = program.run()
            for level, (graph, results) in enumerate(captured):
                graph.update(program.slots)
                graph.replay()
                assert _same(results, expected), (seed, level, graph.levels())
