"""Passes over graphs with symbolic sizes, in every way in which sizes become symbolic.

For blocks of transformers under the pass library, and for random programs under passes that
compute with sizes: the results are eager's at four shapes, the matches are those of the static
graph but for those that a pass refuses because sizes are no numbers yet, no guard is added, and no
symbol is left in the code that runs.
"""

import math
import random
import re
from collections import Counter
from dataclasses import dataclass, field

import pytest
import torch
from tests.sweeps.support import FULL, part
from torch import nn

from bringup import compiler, kernels, passes
from bringup.compiler import backend, inference_graph
from bringup.compiler.native_program import run_eagerly as run_program
from bringup.kernels.patterns._support import KNOWN_AT_RUN_TIME

STAGE = passes.PassStage.AFTER_INFER_SHAPE
KINDS = ("dynamic", "marked", "automatic")
CLEANUP = ("LibraryCollapseViews", "LibraryDropCopies")
SYMBOL = re.compile(r"\b(?:s|u|zf|zuf)\d+\b")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """No passes and nothing compiled from before; none are found outside of the test."""
    monkeypatch.setenv("BRINGUP_PASS_LIBRARY", "0")
    passes.clear_registered_passes()
    yield
    passes.clear_registered_passes()
    torch._dynamo.reset()


@dataclass
class Compiled:
    """What was seen of the graphs of one compiled function."""

    guards: list[list[str]] = field(default_factory=list)
    matches: list[dict[str, int]] = field(default_factory=list)
    unknown: list[set[str]] = field(default_factory=list)  # passes that sizes were unknown to
    code: list[str] = field(default_factory=list)
    results: list[torch.Tensor] = field(default_factory=list)
    inputs: list[list[torch.Tensor]] = field(default_factory=list)  # as each call left them


def is_unknown(result):
    """Whether a pass left something alone because there are no numbers to compute with yet."""
    return any(KNOWN_AT_RUN_TIME in miss.reason for miss in result.near_misses)


def symbols_left(code):
    """The names of sizes that the code of a graph reads and nobody gave it."""
    body = re.sub(r"#.*", "", code.partition(":")[2])
    return [name for name in SYMBOL.findall(body) if not re.search(rf"\b{name} = ", body)]


def run(function, inputs, kind, monkeypatch, names=None):
    """Compile a function, call it with each of `inputs`, and tell what happened."""
    torch._dynamo.reset()
    seen = Compiled()

    def run_eagerly(aten, examples):
        seen.code.append(aten.code)
        return run_program(aten, examples)

    def record(module, examples):
        env = torch._guards.TracingContext.get().fake_mode.shape_env
        built = compiler.dynamo_backend(module, examples, options={"passes": names})
        seen.guards.append(sorted(str(guard.expr) for guard in env.guards) if env else [])
        report = compiler.last_report()
        seen.matches.append({key: n for key, n in report.matches.items() if n})
        seen.unknown.append({item.name for item in report.results if is_unknown(item)})
        return built

    with monkeypatch.context() as patched:
        for module in (backend, inference_graph):  # graphs of training, and of inference
            patched.setattr(module, "run_eagerly", run_eagerly)
        dynamic = {"static": False, "dynamic": True}.get(kind)
        compiled = torch.compile(function, backend=record, dynamic=dynamic)
        for given in inputs:
            given = [item.clone() for item in given]
            if kind == "marked":
                for item in given:
                    for dim in range(item.dim() - 1):
                        torch._dynamo.mark_dynamic(item, dim)
            seen.results.append(compiled(*given))
            seen.inputs.append(given)
    return seen


def check(function, inputs, kinds, monkeypatch, sweep_counts):
    """Everything that is asked of one function and some ways to make sizes symbolic."""
    (expected,) = run(function, inputs[:1], "static", monkeypatch).matches
    for kind in kinds:
        check_kind(function, inputs, kind, expected, monkeypatch, sweep_counts)
    sweep_counts["programs"] += 1
    return expected


def check_kind(function, inputs, kind, expected, monkeypatch, sweep_counts):
    """One way, against the matches of the static graph."""
    seen = run(function, inputs, kind, monkeypatch)
    for got, left, given in zip(seen.results, seen.inputs, inputs, strict=True):
        ours = [item.clone() for item in given]
        torch.testing.assert_close(got, function(*ours))
        torch.testing.assert_close(left, ours)
    for matches, unknown in zip(seen.matches, seen.unknown, strict=True):
        # what a pass leaves alone stays between the views that another would have joined
        unknown = {*unknown, *CLEANUP} if unknown else unknown
        different = {
            name: (expected.get(name, 0), matches.get(name, 0))
            for name in {*expected, *matches} - unknown
            if matches.get(name, 0) != expected.get(name, 0)
        }
        assert not different, f"matches, static and {kind}: {different}"
    assert len(seen.code) == len(seen.matches), "the code of every graph was seen"
    for code in seen.code:
        assert not symbols_left(code), code
    bare = run(function, inputs, kind, monkeypatch, names=[])
    assert seen.guards == bare.guards, "a pass added a guard, or took one away"
    sweep_counts["graphs"] += len(seen.code)
    sweep_counts["matches"] += sum(sum(matches.values()) for matches in seen.matches)
    sweep_counts["results"] += len(seen.results)


# Blocks of transformers, written as their models write them


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.rand(width)), 1e-5

    def forward(self, x):
        y = x.to(torch.float32)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * y.to(x.dtype)


class Attention(nn.Module):
    def __init__(self, width, heads, *, causal, rotary):
        super().__init__()
        self.heads, self.causal, self.rotary = heads, causal, rotary
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.scaling = (width // heads) ** -0.5

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        if self.rotary:
            depth = width // self.heads
            angles = torch.arange(length)[:, None] / 10 ** (torch.arange(depth) % (depth // 2))
            cos, sin = angles.cos()[None, None], angles.sin()[None, None]
            q, k = (item * cos + half_turned(item) * sin for item in (q, k))
        scores = q @ k.transpose(-1, -2) * self.scaling
        if self.causal:
            mask = torch.full((length, length), -math.inf).triu(1)
            scores = scores + mask[None, None]
        mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


def half_turned(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


class Llama(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.first, self.second = RmsNorm(width), RmsNorm(width)
        self.attention = Attention(width, 2, causal=True, rotary=True)
        self.gate, self.up = nn.Linear(width, 32, bias=False), nn.Linear(width, 32, bias=False)
        self.down = nn.Linear(32, width, bias=False)

    def forward(self, x):
        x = x + self.attention(self.first(x))
        y = self.second(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Bert(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.attention = Attention(width, 2, causal=False, rotary=False)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 32), nn.Linear(32, width)

    def forward(self, x):
        x = self.first(x + self.attention(x))
        return self.second(x + self.down(nn.functional.gelu(self.up(x))))


class Gpt2(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.attention = Attention(width, 4, causal=True, rotary=False)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 32), nn.Linear(32, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        x = x + self.dropout(self.attention(self.first(x)))
        y = self.up(self.second(x))
        y = 0.5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))
        return x + self.dropout(self.down(y))


class Norms(nn.Module):
    """RMSNorm in other spellings, and GELU by its formula."""

    def __init__(self, width=16):
        super().__init__()
        self.norm, self.eps = RmsNorm(width), 1e-3

    def forward(self, x):
        y = self.norm(x + 1) + x * (x * x).mean(-1, keepdim=True).add(self.eps).pow(-0.5)
        return 0.5 * y * (1 + torch.erf(y / math.sqrt(2)))


BLOCKS = (Llama, Bert, Gpt2, Norms)
LENGTHS = ((2, 5), (3, 7), (4, 3), (7, 11))


SLICE = {Llama: ("dynamic",), Norms: ("automatic",)}


@pytest.mark.parametrize("block", BLOCKS if FULL else SLICE)
def test_library_rewrites_dynamic_blocks_as_static_ones(block, monkeypatch, sweep_counts):
    kernels.register_patterns()
    torch.manual_seed(0)
    model = block().eval()
    inputs = [[torch.randn(*lengths, 16)] for lengths in LENGTHS]
    with torch.no_grad():
        kinds = KINDS if FULL else SLICE[block]
        assert len(check(model, inputs, kinds, monkeypatch, sweep_counts)) >= 2


# Random programs under passes that compute with sizes


def register_passes():
    """Passes whose replacements read sizes, return inputs, or depend on comparisons of sizes."""

    def replaces(name, pattern, replacement, meets=lambda match: True):
        def meet_requirements(self, match_result):
            return meets(match_result)

        def make(self, inputs, match_result):
            return replacement(inputs[0].builder.op, inputs, match_result)

        found = passes.pattern(lambda self, inputs: pattern(inputs[0].builder.op, inputs))
        members = {"found": found, "meet_requirements": meet_requirements, "replacement": make}
        cls = type(name, (passes.PatternFusionPass,), members)
        passes.register_fusion_pass(name=name, stage=STAGE)(cls)

    def flat(op, inputs, match):
        shape = match.inputs[0].desc.shape
        rows = op("aten::reshape", inputs[0], [shape[0] * shape[1], shape[2]])
        return op("aten::view", op("aten::tanh", op("aten::relu", rows)), shape.dims)

    def doubled(op, inputs, match):
        size = match.inputs[0].desc.shape[0]
        both = op("aten::cat", [inputs[0], op("aten::neg", inputs[0])])
        return op("aten::exp", op("aten::slice.Tensor", both, 0, size, size * 2))

    def filled(op, inputs, match):
        rows, width = match.outputs[0].desc.shape
        zeros = op("aten::zeros", [rows, width])
        return op("aten::addmm", zeros, inputs[0], inputs[1])

    replaces(
        "Flat",
        lambda op, inputs: op("aten::tanh", op("aten::relu", inputs[0].where(rank=3))),
        flat,
        lambda match: match.inputs[0].desc.shape[0] >= 2,
    )
    replaces("AddZero", lambda op, i: op("aten::add.Tensor", i[0], 0), lambda op, i, m: i[0])
    replaces("TimesOne", lambda op, i: op("aten::mul.Tensor", i[0], 1), lambda op, i, m: i[0])
    replaces(
        "Twice",
        lambda op, i: op("aten::add.Tensor", i[0], i[0]),
        lambda op, i, m: op("aten::mul.Tensor", i[0], 2),
    )
    replaces("Doubled", lambda op, i: op("aten::exp", op("aten::neg", i[0])), doubled)
    replaces(
        "Filled",
        lambda op, i: op("aten::mm", i[0], i[1]),
        filled,
        lambda match: match.outputs[0].desc.shape[0] * 2 > 2,
    )


WIDTH = 6


def unary(name):
    return lambda pool, pick: getattr(torch, name)(pick(pool))


STEPS = (
    unary("relu"),
    unary("tanh"),
    unary("neg"),
    lambda pool, pick: torch.tanh(torch.relu(pick(pool))),
    lambda pool, pick: torch.exp(-torch.tanh(pick(pool))),
    lambda pool, pick: pick(pool) + 0,
    lambda pool, pick: pick(pool) * 1,
    lambda pool, pick: (lambda x: x + x)(pick(pool)),
    lambda pool, pick: pick(pool) * 0.5 + pick(pool),
    lambda pool, pick: pick(pool) @ (torch.ones(WIDTH, WIDTH) / WIDTH),
    lambda pool, pick: pick(pool).softmax(-1),
    lambda pool, pick: pick(pool) - pick(pool).mean((0, 1), keepdim=True),
    lambda pool, pick: pick(pool).transpose(1, 2).contiguous().transpose(1, 2),
    lambda pool, pick: torch.cat([pick(pool), pick(pool)], 1)[:, : pool[0].shape[1]],
    lambda pool, pick: pick(pool).flip(0),
)
ENDS = (
    lambda x: x,
    lambda x: x + 0,
    lambda x: (x * 1).view(-1) if x.is_contiguous() else x.sum(0),
    lambda x: x.reshape(x.shape[0] * x.shape[1], WIDTH) @ torch.ones(WIDTH, 3),
    lambda x: x[0] * x.shape[1],
)


def picker(places):
    """Picks from a list, at the next of some places between 0 and 1 each time."""
    left = iter(places)
    return lambda items: items[int(next(left) * len(items))]


def program(seed):
    """A function of a [B, T, 6] tensor, and what it is made of."""
    numbers = random.Random(seed)
    steps = [numbers.randrange(len(STEPS)) for _ in range(numbers.randint(3, 9))]
    picks = [[numbers.random() for _ in range(4)] for _ in steps]
    ends = [(numbers.randrange(len(ENDS)), numbers.random()) for _ in range(numbers.randint(1, 3))]
    writes = numbers.random() < 0.25

    def function(x):
        pool = [x]
        for step, places in zip(steps, picks, strict=True):
            pool.append(STEPS[step](pool, picker(places)))
        results = tuple(ENDS[end](pool[int(place * len(pool))]) for end, place in ends)
        if writes:
            x.mul_(2)
        return results

    return function


@pytest.mark.parametrize("seed", part(range(20)))
def test_random_programs_are_rewritten_as_static_ones(seed, monkeypatch, sweep_counts):
    register_passes()
    inputs = [[torch.randn(*lengths, WIDTH)] for lengths in LENGTHS]
    with torch.no_grad():
        kinds = KINDS if FULL else KINDS[seed % len(KINDS) :][:1]
        check(program(seed), inputs, kinds, monkeypatch, sweep_counts)


def test_symbol_in_the_code_would_be_seen():
    code = "def forward(self, arg0_1):\n    s1 = arg0_1.size(0)  # s2\n    return arg0_1.view({})"
    assert symbols_left(code.format("s1, -1")) == []
    assert symbols_left(code.format("s1, s77")) == ["s77"]


def test_passes_of_the_sweep_find_something():
    """So that equal numbers of matches are not all zero."""
    register_passes()
    found = Counter()
    for seed in range(8):
        torch._dynamo.reset()
        with torch.no_grad():
            torch.compile(program(seed), backend="bringup", dynamic=True)(torch.randn(3, 4, WIDTH))
        found.update(compiler.last_report().matches)
        if len(+found) >= 5:
            return
    raise AssertionError(found)
