"""Random trainings by DDP and FSDP2, each step against plain gradients on cpu.

Every rank draws the same program and computes by itself what all ranks' batches come to.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tests.distributed.ranks import Check, Rank, main
from tests.sweeps.support import part
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

PROGRAMS = {"eager": 40}
WIDTH, WORDS, STEPS = 6, 11, 3  # of odd parts, for shards


class _Block(nn.Module):
    """One of several layers, added to what it is given."""

    KINDS = ("mlp", "normed", "attention", "convolved", "scaled", "shared", "frozen", "counted")

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        if kind == "convolved":
            self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        elif kind == "scaled":
            self.scale, self.shift = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(WIDTH))
        elif kind == "frozen":
            self.up.requires_grad_(False)
        elif kind == "counted":
            self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(x)
        if self.kind == "attention":
            q, k, v = self.up(y).chunk(3, -1)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return x + y + self.down(self.up(y))
        if self.kind == "convolved":
            y = self.conv(y.transpose(1, 2)).transpose(1, 2)
        elif self.kind == "scaled":
            y = y * self.scale + self.shift
        elif self.kind == "counted":
            self.calls += 1
            y = y * (1 + self.calls)
        elif self.kind == "shared":
            y = self.down(functional.silu(self.up(y)))
        return x + self.down(functional.gelu(self.up(y)))


class _Net(nn.Module):
    def __init__(self, kinds: list[str], *, tied: bool, unused: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(_Block(kind) for kind in kinds)
        self.head = nn.Linear(WIDTH, WORDS, bias=not tied)
        if tied:
            self.head.weight = self.words.weight
        if unused:
            self.unused = nn.Linear(WIDTH, WIDTH)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(x).flatten(0, 1).float(), words.flatten())


@dataclass(frozen=True)
class Program:
    """What is trained, and how.

    Attributes:
        nets: one or two, whose losses are added.
        by: "ddp" or "fsdp".
        options: of DDP, or of `fully_shard`.
        hook: of DDP's communication, or None.
        compiled: "", "whole" (what is wrapped), "inside" (before it is wrapped) or "blocks".
        autocast: whether the forward computes in bfloat16.
        rows: of the batches of each step, one backward each; the last one is reduced.
        keeps_grads: whether gradients become zeros, not None.
        clip: the greatest norm of gradients, or None.
        optimizer: of all parameters.
    """

    nets: list[_Net]
    by: str
    options: dict[str, Any]
    hook: Any
    compiled: str
    autocast: bool
    rows: list[list[int]]
    keeps_grads: bool
    clip: float | None
    optimizer: Callable[..., torch.optim.Optimizer]

    @staticmethod
    def drawn(rng: random.Random, *, is_compiled: bool) -> Program:
        by = rng.choice(("ddp", "fsdp"))
        unused = rng.random() < 0.2
        options: dict[str, Any] = {}
        hook = None
        if by == "ddp":
            options["gradient_as_bucket_view"] = rng.random() < 0.5
            options["bucket_cap_mb"] = 25 if is_compiled else rng.choice((0.0001, 0.001, 25))
            options["find_unused_parameters"] = unused or rng.random() < 0.2
            options["static_graph"] = not is_compiled and rng.random() < 0.3
            hook = rng.choice((None, None, default_hooks.allreduce_hook, *_COMPRESSING))
        else:
            options["reshard_after_forward"] = rng.choice((True, False, 2))
            if rng.random() < 0.4:
                options["mp_policy"] = MixedPrecisionPolicy(
                    param_dtype=torch.bfloat16, reduce_dtype=rng.choice((None, torch.float32))
                )
        batches = rng.choice((1, 1, 2, 3)) if not options.get("static_graph") else 1
        compiled = rng.choice(("whole", "inside", "blocks")) if is_compiled else ""
        torch.manual_seed(rng.randrange(1000))
        nets = [
            _Net(
                [rng.choice(_Block.KINDS) for _ in range(rng.randrange(1, 4))],
                tied=rng.random() < 0.3,
                unused=unused,
            )
            for _ in range(rng.choice((1, 1, 1, 2)))
        ]
        return Program(
            nets,
            by,
            options,
            hook,
            compiled,
            autocast=rng.random() < 0.25,
            rows=[[rng.choice((1, 2, 3)) for _ in range(batches)] for _ in range(STEPS)],
            keeps_grads=rng.random() < 0.3,
            clip=rng.choice((None, None, 0.5)),
            optimizer=rng.choice(_OPTIMIZERS),
        )

    @property
    def tolerance(self) -> float:
        """Return by how much of its norm a gradient may be off."""
        exact = not self.autocast and self.hook not in _COMPRESSING
        return 1e-4 if exact and "mp_policy" not in self.options else 6e-2

    def wrapped(self, net: _Net, device: str) -> nn.Module:
        model: Any = copy.deepcopy(net).to(device)
        if self.compiled == "blocks":
            for block in model.blocks:
                block.compile()
        if self.compiled == "inside":
            model.compile()
        if self.by == "ddp":
            model = DistributedDataParallel(model, **self.options)
            if self.hook is not None:
                model.register_comm_hook(None, self.hook)
        else:
            for block in model.blocks:
                fully_shard(block, **self.options)
            fully_shard(model, **self.options)
        if self.compiled == "whole":
            model = torch.compile(model)
        return model

    def batch(self, step: int, number: int, rank: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(100 * step + 10 * number + rank)
        return torch.randint(WORDS, (self.rows[step][number], 5), generator=generator)

    def loss(self, models: list[Any], words: torch.Tensor, count: int) -> torch.Tensor:
        there = torch.autocast(words.device.type, torch.bfloat16, enabled=self.autocast)
        with there:
            return sum((model(words) for model in models), torch.zeros(())) / count


_COMPRESSING = (default_hooks.fp16_compress_hook, default_hooks.bf16_compress_hook)
_OPTIMIZERS = (
    functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    functools.partial(torch.optim.SGD, lr=0.1, weight_decay=0.01),
    functools.partial(torch.optim.AdamW, lr=0.01),
)


def _plain_gradients(program: Program, nets: list[_Net], step: int, size: int) -> None:
    """Give the parameters the mean of all ranks' gradients."""
    buffers = [copy.deepcopy(list(net.buffers())) for net in nets]
    count = len(program.rows[step])
    for rank in range(size):
        for net, former in zip(nets, buffers, strict=True):
            for buffer, value in zip(net.buffers(), former, strict=True):
                buffer.copy_(value)
        for number in range(count):
            (program.loss(nets, program.batch(step, number, rank), count) / size).backward()


def _only_last(models: list[Any], *, is_last: bool) -> contextlib.ExitStack:
    """Let only the last backward of a step reduce."""
    stack = contextlib.ExitStack()
    for model in models:
        inner = getattr(model, "_orig_mod", model)
        if isinstance(inner, FSDPModule):
            inner.set_requires_gradient_sync(is_last)
            inner.set_is_last_backward(is_last)
        elif not is_last:
            stack.enter_context(inner.no_sync())
    return stack


def _whole(x: Any) -> torch.Tensor:
    found: torch.Tensor = x.full_tensor() if hasattr(x, "full_tensor") else x
    return found.detach().cpu().float()


def _compare(program: Program, what: str, found: Any, want: torch.Tensor | None) -> None:
    if want is None:
        assert found is None or not _whole(found).any(), (what, found)
        return
    got = _whole(found)
    error = (got - want).norm()
    limit = program.tolerance * max(float(want.norm()), 1e-2)
    assert error <= limit, (what, float(error), limit, got, want)


def _step(program: Program, me: Rank, models: list[Any], plain: list[_Net], step: int) -> list[Any]:
    """Compare the gradients of a step; returns each parameter's name, and both forms of it."""
    _plain_gradients(program, plain, step, me.size)
    count = len(program.rows[step])
    for number in range(count):
        words = program.batch(step, number, me.rank).to(me.device)
        with _only_last(models, is_last=number == count - 1):
            program.loss(models, words, count).backward()
    pairs = [
        (f"step {step}: {name}", found, want)
        for model, net in zip(models, plain, strict=True)
        for found, (name, want) in zip(model.parameters(), net.named_parameters(), strict=True)
    ]
    for name, found, want in pairs:
        _compare(program, f"gradient, {name}", found.grad, want.grad)
    if program.clip is not None:
        for one in (*models, *plain):
            nn.utils.clip_grad_norm_(one.parameters(), program.clip)
    with torch.no_grad():  # Adam makes much of what is nothing but error
        for _, found, want in pairs:
            if want.grad is not None and found.grad is not None:
                want.grad.copy_(_whole(found.grad))
    return pairs


def _check(seed: int, kind: str, me: Rank) -> None:
    program = Program.drawn(random.Random(seed), is_compiled=kind == "compiled")
    torch._dynamo.reset()
    counters.clear()
    plain = [copy.deepcopy(net) for net in program.nets]
    models = [program.wrapped(net, me.device) for net in program.nets]
    optimizers = [
        program.optimizer([p for one in group for p in one.parameters() if p.requires_grad])
        for group in (plain, models)
    ]
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=not program.keeps_grads)
        pairs = _step(program, me, models, plain, step)
        for optimizer in optimizers:
            optimizer.step()
        for name, found, want in pairs:
            _compare(program, name, found, want.detach())
    if kind == "compiled":
        assert counters["stats"]["unique_graphs"], "nothing was compiled"


def _checks() -> list[Check]:
    checks: list[Check] = []
    asked = json.loads(sys.argv[1])[5]
    for kind, count in PROGRAMS.items():
        own: list[Check] = []
        for seed in range(count):
            check = functools.partial(_check, seed, kind)
            check.__name__ = f"{kind}_{seed}"  # type: ignore[attr-defined]
            own.append(check)
        checks += own if asked else part(own)
    return checks


if __name__ == "__main__":
    from bringup_sim_ops import load

    main(_checks(), prepare=load)
