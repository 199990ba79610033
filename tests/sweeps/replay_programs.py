"""Random programs that a graph captures at every level, and their comparison with eager. As a
program: `python -m tests.sweeps.replay_programs DRIVER DEVICE FIRST COUNT STEP [PACKAGE]`; with a
package of operators of what the device has kernels for.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import ClassVar

import torch
from tests.sweeps.support import FULL
from torch import Tensor

from bringup import devices, graphs
from bringup.graphs._handlers import handlers_of_block

__all__ = ["compare"]

STEPS = 12
LEVELS = (0, 1)
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SPECIAL = (float("nan"), -float("nan"), float("inf"), -float("inf"), -0.0, 1e-40, 3e38)

NATIVE_UNARY: list[Callable[[Tensor], Tensor]] = [
    torch.relu,
    torch.neg,
    torch.abs,
    torch.exp,
    torch.tanh,
    torch.sigmoid,
    torch.sqrt,
    torch.floor,
    torch.nn.functional.gelu,
    torch.nn.functional.silu,
    lambda x: x * 0.5,
    lambda x: x / 3 - 2,
    lambda x: widened(x).sum(-1, keepdim=True).to(x.dtype),
    lambda x: widened(x).amax(-1, keepdim=True).to(x.dtype),
    lambda x: x.t().contiguous(),
    lambda x: x.t(),
    lambda x: x[::2],
    lambda x: x.to(torch.float32).to(x.dtype),
    lambda x: x.to(torch.float64).to(x.dtype),
    lambda x: x.clone(),
    lambda x: (x > 0).to(x.dtype),
    lambda x: torch.where(x > 0, x, -x),
]
NATIVE_BINARY: list[Callable[[Tensor, Tensor], Tensor]] = [
    torch.add,
    torch.sub,
    torch.mul,
    torch.div,
    torch.maximum,
    torch.minimum,
    lambda x, y: torch.add(x, y, alpha=2),
    lambda x, y: torch.where(x < y, x, y),
    lambda x, y: x.clone().add_(y),
    lambda x, y: x.clone().mul_(2).sub_(y),
    lambda x, y: x.clone().copy_(y),
    lambda x, y: x.double().add(y).to(x.dtype),
    lambda x, y: x.clone().double().mul_(y[:1, :1].float()).to(x.dtype),
    lambda x, y: x.clone().add_(y.double(), alpha=2),
    lambda x, y: (x + y).mul_(x).relu_().sub_(y),
]
UNARY: list[Callable[[Tensor], Tensor]] = [
    *NATIVE_UNARY,
    torch.erf,
    lambda x: x.sum(-1, keepdim=True),
    lambda x: x.amax(-1, keepdim=True),
    lambda x: 2 - x,
    lambda x: torch.softmax(x, -1),
    lambda x: torch.log_softmax(x, 0),
    lambda x: x.cumsum(0),
    lambda x: x.mean(0, keepdim=True),
    torch._neg_view,
    lambda x: torch.where(x > 0, x, 0),
    lambda x: x.tril(),
    lambda x: x.gather(1, x.argmax(-1, keepdim=True)),
    lambda x: x.to(torch.int64).remainder(9).to(torch.bool).to(torch.int32).to(x.dtype),
    lambda x: torch.cat((x, x[:, :1].double(), -x[:, 1:].float()), 1)[:, :: x.shape[1]].to(x.dtype),
    lambda x: x.index_select(0, order(x)),
    lambda x: torch.nn.functional.embedding(order(x), x),
    lambda x: x[order(x)[:, None], order(x.t())],
    lambda x: x[:, order(x.t())],
    lambda x: x.masked_fill(x > 0, -1.5).masked_fill_(x < -2, 7),
    lambda x: x.clone().fill_(0.3) + torch.arange(x.shape[1], device=x.device),
    lambda x: x.clone()[:1].zero_() + torch.full((), -0.0, dtype=x.dtype, device=x.device),
    lambda x: x.mean().expand(x.shape) + x.mean((0, 1)),
    lambda x: torch.ops.aten.add_.Scalar(x.clone(), 2, 0.5).div_(3),
    lambda x: torch.ops.aten.mul.Scalar(torch.ops.aten.rsub.Scalar(x, 2), 0.7),
    lambda x: torch.where(x > 0, x, float("-inf")),
    lambda x: torch.nn.functional.layer_norm(x, x.shape[1:]),
    lambda x: x.flatten().clone().as_strided(x.shape, (1, 1)).clamp_(max=0.5).mul_(2) + 1,
]
BINARY: list[Callable[[Tensor, Tensor], Tensor]] = [
    *NATIVE_BINARY,
    torch.atan2,
    lambda x, y: torch.remainder(x, y),
    lambda x, y: x.clone().index_copy_(0, order(y), y),
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
    lambda x, y: torch.nn.functional.scaled_dot_product_attention(
        x[None, None], y[None, None], y[None, None]
    )[0, 0],
    lambda x, y: torch.bmm(x[None], y.t()[None])[0],
    lambda x, y: torch.baddbmm(x[:, :1], x[None], y.t()[None])[0],
    lambda x, y: (x @ y.t())[None].baddbmm_(x[None], y.t()[None], beta=0.5)[0],
]


def widened(x: Tensor) -> Tensor:
    """Return numbers for which every device reduces rows."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def order(x: Tensor) -> Tensor:
    """Return the numbers of the rows in another order, which depends on the content."""
    return x[:, :1].argsort(0).flatten()


class Program:
    """Steps over matrices, of which the first are inputs."""

    unary, binary, products = UNARY, BINARY, PRODUCTS
    choices: ClassVar[tuple[float, ...]] = (2, 0.5, -1.5, 0, 3)

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
        self.numbers = [random.choice(self.choices) for _ in range(STEPS)]
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
            elif kind < 0.1 and self.products and x.shape[1] == y.shape[1]:
                made.append(self.products[int(which * len(self.products))](x, y))
            elif kind < 0.55 and x.shape == y.shape:
                made.append(self.binary[int(which * len(self.binary))](x, y))
            else:
                made.append(self.unary[int(which * len(self.unary))](x))
        return made[len(self.inputs) :]


class NativeProgram(Program):
    """Steps that the device has kernels for, most of them expressions."""

    unary, binary, products = NATIVE_UNARY, NATIVE_BINARY, ()
    choices = (2.0, 0.5, -1.5, 0.0, 3.0)  # a kernel for floats takes no integers


def same(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return all(torch.equal(_bits(a), _bits(b)) for a, b in zip(ours, theirs, strict=True))


def _bits(x: Tensor) -> Tensor:
    return x.cpu().clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)


def _one_nan(tensors: list[Tensor]) -> list[Tensor]:
    """Which bits a NaN has is the compiler's choice in a kernel of several operators."""
    return [torch.where(x.isnan(), float("nan"), x) for x in (one.cpu() for one in tensors)]


def compare(device: str, seeds: range, program: type[Program] = Program) -> Counter[str]:
    """Replay programs at every level, with updates in between.

    Args:
        device: on which, of a driver that is loaded.
        seeds: of the programs.
        program: of what.

    Returns:
        How many nodes each level ran.

    Raises:
        AssertionError: a replay did not give the bits of eager.
    """
    counts = Counter[str]()
    with handlers_of_block():
        for name, (slot, _) in NUMBERED.items():
            body = {"UPDATE_SPECS": {name: [("kwarg", slot, slot)]}}
            graphs.register_graph_handler(name)(type("Numbered", (graphs.GraphOpHandler,), body))
        for seed in seeds:
            counts.update(_compare_program(seed, device, program))
    return counts


def _split_at(seed: int, level: int) -> list[Callable[..., bool]]:
    """Return where a program is captured in pieces at some of its levels: at random calls."""
    points = Random(seed)
    return [lambda op, args, kwargs: points.random() < 0.15] if (seed + level) % 2 else []


def _compare_program(seed: int, device: str, kind: type[Program]) -> Counter[str]:
    random, counts = Random(seed), Counter[str]()
    torch.manual_seed(seed)
    program = kind(random, device)
    captured = []
    compiles = FULL or seed % 5 == 3 or kind is NativeProgram
    for level in (*LEVELS, 2) if compiles else LEVELS:
        graph = graphs.CapturedGraph(optimize=level)
        with torch.no_grad(), graphs.capture(graph, split_at=_split_at(seed, level)):
            results = program.run()
        assert graph.wait_for_functions()
        captured.append((graph, results))
        assert {node.level for node in graph.levels()} <= set(range(level + 1))
    for node in captured[-1][0].levels():
        kind_of_node = "eager" if "split_at" in node.reason else f"level {node.level}"
        counts[f"{device}, {kind_of_node}"] += 1
        assert "other bits" not in node.reason, (seed, node)
        assert "function was not written" not in node.reason, (seed, node)
    for _ in range(3):
        program.change(random)
        with torch.no_grad():
            expected = program.run()
        for level, (graph, results) in enumerate(captured):
            graph.update(program.slots)
            graph.replay()
            both = (results, expected)
            if kind is NativeProgram and level == 2:
                both = (_one_nan(results), _one_nan(expected))
            assert same(*both), (seed, level, graph.levels())
    return counts


if __name__ == "__main__":
    driver, device, first, count, step, *packages = sys.argv[1:]
    devices.load_driver(driver)
    for package in packages:
        kernels = importlib.import_module(package).load()
        if "aten::copy.out" not in kernels:
            everything = ("floating", "integral", "bool")
            devices.kernel("aten::copy.out", expression="src", supports=everything)
    kind = NativeProgram if packages else Program
    print(json.dumps(compare(device, range(int(first), int(count), int(step)), kind)))
