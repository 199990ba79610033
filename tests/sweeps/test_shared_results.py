"""Which results share a storage, with each other and with what the caller gave, is what it is in
eager, whatever an identity rewrite takes away: random programs of views.
"""

import random

import pytest
import torch
from tests.sweeps.support import part
from torch.fx.experimental.proxy_tensor import make_fx

from bringup import compiler, passes

STAGE = passes.PassStage.AFTER_INFER_SHAPE

VIEWS = {
    "t": lambda x: [x.transpose(0, -1)],
    "flat": lambda x: [x.view(-1)] if x.is_contiguous() else [x.unsqueeze(0)],
    "first": lambda x: [x[0]],
    "narrow": lambda x: [x.narrow(0, 0, max(1, x.shape[0] - 1))],
    "split": lambda x: list(x.split(1)),
    "unbind": lambda x: list(x.unbind(0)),
    "expand": lambda x: [x.unsqueeze(0).expand(2, *x.shape)],
    "strided": lambda x: [x.as_strided((2,), (1,), x.storage_offset())],
    "detach": lambda x: [x.detach()],
}
OTHERS = {
    "same": lambda x: [torch.neg(torch.neg(x))],
    "zero": lambda x: [torch.add(x, -0.0)],
    "sin": lambda x: [torch.sin(x)],
    "clone": lambda x: [x.clone()],
}
MINIMAL = [
    [("same", 0), ("flat", 1)],  # z = -(-x); return z, z.view(-1)
    [("same", 0), ("t", 1), ("flat", 1), ("first", 1)],
    [("same", 0), ("split", 1)],
    [("sin", 0), ("same", 1), ("flat", 1), ("flat", 2)],
]


@pytest.fixture(autouse=True)
def identities(monkeypatch):
    """Two identities as passes, and no other."""
    monkeypatch.setenv("BRINGUP_PASS_LIBRARY", "0")
    passes.clear_registered_passes()
    x = torch.ones(2, 3)
    compiler.register_replacement(lambda x: torch.neg(torch.neg(x)), keep, [x], name="Neg")
    compiler.register_replacement(lambda x: torch.add(x, -0.0), keep, [x], name="Zero")

    @passes.register_fusion_pass(name="NegOfAnyRank", stage=STAGE)
    class NegOfAnyRank(passes.PatternFusionPass):
        @passes.pattern
        def found(self, inputs):
            op = inputs[0].builder.op
            return op("aten::neg", op("aten::neg", inputs[0]))

        def replacement(self, inputs):
            return inputs[0]

    yield
    passes.clear_registered_passes()
    torch._dynamo.reset()


def keep(x):
    return x


def drawn(seed):
    """Steps, each with the number of the tensor that it is made of."""
    draw = random.Random(seed)
    names = [*VIEWS, *OTHERS, "same", "same", "zero"]
    return [(draw.choice(names), draw.randrange(index + 1)) for index in range(draw.randint(2, 6))]


def program_of(steps, results):
    """A function of one matrix that returns some of what its steps make."""

    def program(x):
        made = [x]
        for name, source in steps:
            base = made[source % len(made)]
            if base.dim() == 0 or base.numel() < 2:
                made.append(base)
            else:
                made.extend((VIEWS | OTHERS)[name](base))
        if results is None:
            return tuple(made[1:])
        return tuple(made[1:][index % (len(made) - 1)] for index in results)

    return program


def shared(inputs, results):
    """Pairs of tensors that lie in one storage."""
    addresses = [item.untyped_storage().data_ptr() for item in (*inputs, *results)]
    return [
        (one, other)
        for one, first in enumerate(addresses)
        for other, second in enumerate(addresses[:one])
        if first == second
    ]


def way(function, x, seed, names=None):
    """The function after the passes of these names (None: all), in one of several ways."""
    kind = seed % 8
    if kind == 0:
        torch._dynamo.reset()
        return torch.compile(function, backend="bringup", options={"passes": names})
    if kind == 1:
        module = torch.nn.Module()
        module.forward = function
        program = torch.export.export(module, (x,))
        compiler.apply_passes(program, names)
        return program.module()
    module = make_fx(function, tracing_mode="symbolic" if kind == 2 else "fake")(x)
    compiler.apply_passes(module, names)
    return module


CASES = [*MINIMAL, *range(800)]


@pytest.mark.parametrize("case", part(CASES, always=MINIMAL), ids=str)
def test_results_share_memory_as_in_eager(case):
    draw = random.Random(str(case))
    steps = drawn(case) if isinstance(case, int) else case
    results = [draw.randrange(20) for _ in range(4)] if isinstance(case, int) else None
    function = program_of(steps, results)
    seed = case if isinstance(case, int) else 3
    for base in (torch.randn(2, 3), torch.randn(3, 4)[:2, ::2].t()):
        expected = function(base)
        with torch.no_grad():
            plain = way(function, base, seed, [])(base)
            got = way(function, base, seed)(base)
        for one, other in zip(expected, got, strict=True):
            assert torch.equal(one, other), steps
            assert one.shape == other.shape, steps
        if any(name == "strided" for name, _ in steps):
            continue  # what addresses memory by strides is copied for itself
        assert shared([base], got) == shared([base], plain), steps
        if seed % 8 > 1:  # torch.compile and torch.export part some results by themselves
            assert shared([base], plain) == shared([base], expected), steps
