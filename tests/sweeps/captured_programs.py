"""Programs for the sweep of captured graphs: a model drawn from a few blocks, its inputs, and what
it keeps from call to call.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bringup import graphs

__all__ = ["ROWS", "WIDTH", "Keeper", "Kind", "Program", "Scaled", "SoftplusHandler", "draw_model"]

WIDTH = 8
ROWS = 3


class Scaled(nn.Module):
    """A parameter, a buffer and a plain tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.randn(WIDTH))
        self.register_buffer("shift", torch.randn(WIDTH))
        self.mask = (torch.rand(WIDTH) > 0.3).float()
        self.power = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain * self.mask + self.shift * self.power


class Cache(nn.Module):
    """A buffer that every call writes at a position, and reads whole."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(5, WIDTH))
        self.register_buffer("position", torch.tensor([2]))

    def forward(self, x: Tensor) -> Tensor:
        self.keys.index_copy_(0, self.position, x[:1])
        return torch.softmax(x @ self.keys.t(), -1) @ self.keys


class Views(nn.Module):
    """Views of an input and of a weight, and a write through a view."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Parameter(torch.randn(2, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = x.t().reshape(WIDTH, -1).t().clone()
        y[:, : WIDTH // 2].add_(self.both[0, WIDTH // 2 :])
        return y * self.both[1]


class Folded(nn.Module):
    """A weight of which freezing computes another one."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.table * 2)


class InPlace(nn.Module):
    """Operators in place on a result."""

    def forward(self, x: Tensor) -> Tensor:
        return (x + 1).mul_(0.5).relu_().sub_(0.1)


class Counter(nn.Module):
    """A buffer that counts calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x + self.calls


class Noise(nn.Module):
    """Random numbers from the default generator, and from one of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator(torch.get_default_device()).manual_seed(5)

    def forward(self, x: Tensor) -> Tensor:
        own = torch.rand(x.shape, generator=self.generator)
        return nn.functional.dropout(x + own, 0.5) + torch.randn_like(x)


class Softplus(nn.Module):
    """An operator with a number that can be updated."""

    def __init__(self) -> None:
        super().__init__()
        self.beta = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.softplus(x, beta=self.beta)


class SoftplusHandler(graphs.GraphOpHandler):
    """Makes it updatable."""

    UPDATE_SPECS: ClassVar = {"aten::softplus": [("kwarg", "beta", "beta")]}


class Keeper(nn.Module):
    """Two tensors in a place; each call reads the first and leaves it otherwise.

    Args:
        place: where they are kept, one of `PLACES`.
        way: how it is left, one of `WAYS`.
    """

    PLACES = ("attributes", "buffers", "list", "dictionary", "object", "submodule", "tuple")
    WAYS = ("written in place", "a result", "an older tensor", "two change places")

    def __init__(self, place: str, way: str) -> None:
        super().__init__()
        self._place, self._way = place, way
        pair = (torch.randn(WIDTH), torch.randn(WIDTH))
        named = dict(zip(("first", "second"), pair, strict=True))
        self.kept: Any = None
        if place == "attributes":
            self.first, self.second = pair
        elif place == "buffers":
            for name, tensor in named.items():
                self.register_buffer(name, tensor)
        elif place == "list":
            self.kept = [[*pair]]
        elif place == "dictionary":
            self.kept = named
        elif place == "object":
            self.kept = [SimpleNamespace(**named)]
        elif place == "submodule":
            self.kept = nn.ParameterDict(named)
        else:
            self.kept = pair

    def forward(self, x: Tensor) -> Tensor:
        first, second = self._pair()
        y = x * first
        if self._way == "written in place":
            first.add_(x[0])
        elif self._way == "a result":
            self._keep(first + x[0], second)
        elif self._way == "an older tensor":
            self._keep(second, second)
        else:
            self._keep(second, first)
        return y

    def _pair(self) -> tuple[Tensor, Tensor]:
        if self._place in ("attributes", "buffers"):
            return self.first, self.second
        if self._place == "list":
            return self.kept[0][0], self.kept[0][1]
        if self._place in ("dictionary", "submodule"):
            return self.kept["first"], self.kept["second"]
        return (self.kept[0].first, self.kept[0].second) if self._place == "object" else self.kept

    def _keep(self, first: Tensor, second: Tensor) -> None:
        if self._place in ("attributes", "buffers"):
            self.first, self.second = first, second
        elif self._place == "list":
            self.kept[0] = [first, second]  # another list
        elif self._place in ("dictionary", "submodule"):
            self.kept["first"], self.kept["second"] = first, second
        elif self._place == "object":
            self.kept[0].first, self.kept[0].second = first, second
        else:
            self.kept = (first, second)


_BLOCKS = (
    lambda: nn.Linear(WIDTH, WIDTH),
    lambda: nn.Linear(WIDTH, WIDTH, bias=False),
    lambda: nn.LayerNorm(WIDTH),
    lambda: nn.GELU(),
    lambda: nn.Dropout(0.2),
    Scaled,
    Cache,
    Views,
    Folded,
    InPlace,
    Counter,
    Noise,
    Softplus,
)
_WRITING = (Cache, Counter)
"""Blocks that write a buffer, which `options={"capture": True}` refuses."""


class _Network(nn.Module):
    """An embedding of tokens plus an input, then the blocks."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, WIDTH)
        self.blocks = nn.ModuleList(blocks)

    def forward(self, tokens: Tensor, x: Tensor) -> Tensor:
        y = self.embed(tokens) + x
        for block in self.blocks:
            y = block(y)
        return y


def draw_model(random: Random, *, without: Sequence[type[nn.Module]] = ()) -> nn.Module:
    """A network of one to six blocks in evaluation mode."""
    torch.manual_seed(random.randrange(1 << 30))
    choices = [block for block in _BLOCKS if block not in without]
    blocks = [random.choice(choices)() for _ in range(random.randint(1, 6))]
    return _Network(blocks).eval()


class Kind(enum.Enum):
    """What is captured, and by whom."""

    MODEL = "the user captures a call of the model"
    FROZEN = "the user captures a call of a compiled function that folded the weights"
    COMPILED = "a compiled function captures itself: the option `capture`"


# What a capture refuses: writes of buffers by a function that captures itself.
_WITHOUT: dict[Kind, Sequence[type[nn.Module]]] = {
    Kind.MODEL: (),
    Kind.FROZEN: (),
    Kind.COMPILED: _WRITING,
}
_OPTIONS: dict[Kind, dict[str, Any]] = {
    Kind.FROZEN: {"freeze": True, "on_weight_change": "refold"},
    Kind.COMPILED: {"capture": True},
}


class Program:
    """A model, its inputs, and tensors that it reaches through a list."""

    def __init__(self, random: Random, kind: Kind) -> None:
        self.model = draw_model(random, without=_WITHOUT[kind])
        self.kind = kind
        self.device = torch.get_default_device()
        self._call = self.model
        if kind in _OPTIONS:
            options = {**_OPTIONS[kind], "passes": []}
            self._call = torch.compile(self.model, backend="bringup", options=options)
        self.tokens = torch.tensor([random.randrange(11) for _ in range(ROWS)])
        self.x = torch.randn(ROWS, WIDTH)
        self.extras = [torch.randn(WIDTH)]
        self.graph: graphs.CapturedGraph = graphs.CapturedGraph()
        self.output: Tensor = torch.empty(0)
        self.pool = graphs.graph_pool_handle()
        self.neighbours: list[Any] = []  # other graphs in it, their results and models

    def run(self, *inputs: Tensor) -> Tensor:
        """One call of what is captured, as the user's code makes it."""
        return self._call(*(inputs or (self.tokens, self.x))) * self.extras[0]

    def expected(self, *inputs: Tensor) -> Tensor:
        """The same by the model alone."""
        return self.model(*(inputs or (self.tokens, self.x))) * self.extras[0]

    def capture(self) -> None:
        """From here on it replays."""
        if self.kind is Kind.COMPILED:
            self.output = self.run()
            return
        self.graph = graphs.CapturedGraph()
        with graphs.capture(self.graph, self.pool, inputs=(self.tokens, self.x)):
            self.output = self.graph.outputs = self.run()

    def replay(self) -> Tensor:
        """Computes `output` again."""
        if self.kind is Kind.COMPILED:
            self.output = self.run()
        else:
            self.graph.replay()
        return self.output

    def replay_with(self, *inputs: Tensor) -> Tensor:
        """What a replay gives for other inputs, as a thread of its own may call it."""
        if self.kind is not Kind.COMPILED:
            return self.graph.run(*inputs)
        with torch.no_grad(), self.device:
            return self.run(*inputs)

    def state(self) -> list[Tensor]:
        """Every tensor that a call may write."""
        return list(self.model.buffers())

    def generators(self) -> list[torch.Generator]:
        """Every generator that a call may draw from."""
        own = [module.generator for _, module in self.modules_with("generator")]
        on_cpu = self.device.type == "cpu"
        default = torch.default_generator if on_cpu else torch.npu.default_generators[0]
        return [default, *own]

    def left_by(self, call: Callable[[], Tensor], *, put_back: bool = True) -> list[Tensor]:
        """Copies on cpu of what a call gives and leaves in tensors and generators; puts them
        back.
        """
        state, generators = self.state(), self.generators()
        before = [tensor.clone() for tensor in state], [g.get_state() for g in generators]
        left = [call(), *state, *(generator.get_state() for generator in generators)]
        left = [tensor.cpu().clone() for tensor in left]
        if put_back:
            for tensor, content in zip(state, before[0], strict=True):
                if not torch.equal(tensor, content):  # a frozen one would count the write
                    tensor.copy_(content)
            for generator, content in zip(generators, before[1], strict=True):
                generator.set_state(content)
        return left

    def modules_with(self, key: str) -> list[tuple[str, nn.Module]]:
        """Modules that hold a parameter, buffer or attribute of this name."""
        return [
            (name, module)
            for name, module in self.model.named_modules()
            if getattr(module, key, None) is not None
        ]
