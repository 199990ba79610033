"""A user's own model through the documented API, against Inductor with freezing.

transformers' models with random weights: BERT of MiniLM's shape at three sizes and at lengths that
vary, a Llama with a static cache, one step and 128 tokens. All take turns in one process, with the
same threads; first calls have a process each. A row's ratio is our time over the peer's.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks._harness import Row, interleave, row
from benchmarks._modes import compiled, first_results
from benchmarks._serving_first_call import first_call_rows
from benchmarks._serving_models import bert, llama
from benchmarks._serving_text import generate_rows, mixed_rows

SIZES = ((1, 16), (8, 32), (32, 64))
BUDGETS = {"serve": (0.5, 0.91, 1.0), "default": (0.77, 1.0, 1.03), "max": (0.83, 0.83, 0.83)}
"""The most that our time may be of Inductor's, by mode and size."""


def _check(results: Mapping[str, Tensor]) -> None:
    for name, result in results.items():
        if name in ("max", "inductor, bf16"):
            cosine = torch.cosine_similarity(result.flatten(), results["eager"].flatten(), dim=0)
            assert cosine > 0.99, f"{name}: cosine {cosine}"
        else:
            torch.testing.assert_close(result, results["eager"])


def _bert_rows(batch: int, length: int, position: int, rounds: int) -> list[Row]:
    model = bert()
    ids = torch.randint(0, 30000, (batch, length))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def call(function: Callable[..., object]) -> Tensor:
        state: Tensor = function(**given).last_hidden_state  # type: ignore[attr-defined]
        return state

    forms = {name: compiled(model, name) for name in ("inductor", "default", "serve", "max")}
    calls = {"eager": partial(call, model)} | {
        name: partial(call, function) for name, function in forms.items()
    }

    def under_autocast(function: Callable[..., object]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return call(function).float()

    calls["inductor, bf16"] = partial(under_autocast, compiled(model, "inductor"))
    _check(first_results(calls))
    samples = interleave(calls, rounds=rounds, calls=1)
    name = f"BERT {batch} x {length}"
    rows = [row(f"{name}, serve", "eager", samples["serve"], samples["eager"])]
    for mode, budgets in BUDGETS.items():
        peer = "inductor, bf16" if mode == "max" else "inductor"
        words = "Inductor, freezing, bf16" if mode == "max" else "Inductor, freezing"
        rows.append(
            row(f"{name}, {mode}", words, samples[mode], samples[peer], budget=budgets[position])
        )
    rows.append(row(f"{name}, max", "serve", samples["max"], samples["serve"]))
    return rows


def _decode_rows(rounds: int) -> list[Row]:
    import transformers as hf

    model = llama()
    token, position = torch.tensor([[5]]), torch.tensor([[16]])

    def step(function: Callable[..., object]) -> Callable[[], Tensor]:
        """One step behind a prompt of 16 tokens, again and again."""
        cache = hf.StaticCache(config=model.config, max_cache_len=256)
        model(torch.arange(16)[None] * 37, past_key_values=cache, use_cache=True)

        def run() -> Tensor:
            for layer in cache.layers:
                layer.cumulative_length.fill_(16)
            found = function(
                input_ids=token, past_key_values=cache, use_cache=True, position_ids=position
            )
            logits: Tensor = found.logits  # type: ignore[attr-defined]
            return logits

        return run

    calls = {"eager": step(model)} | {
        name: step(compiled(model, name)) for name in ("inductor", "default", "serve", "max")
    }
    _check(first_results(calls))
    weights = torch.cat(
        [
            item.flatten()
            for name, item in model.named_parameters()
            if item.dim() == 2 and "embed" not in name
        ]
    )
    timed: dict[str, Callable[[], object]] = {**calls, "read": weights.sum}
    samples = interleave(timed, rounds=rounds, calls=1)
    name = "Llama 8 x 512 decode"
    return [
        row(f"{name}, serve", "eager", samples["serve"], samples["eager"]),
        row(
            f"{name}, serve",
            "Inductor, freezing",
            samples["serve"],
            samples["inductor"],
            budget=0.56,
        ),
        row(f"{name}, default", "Inductor, freezing", samples["default"], samples["inductor"]),
        row(f"{name}, serve", "a read of the weights", samples["serve"], samples["read"], budget=2),
        row(f"{name}, max", "serve", samples["max"], samples["serve"], budget=0.67),
    ]


_MEMORY = """
import sys, torch
from benchmarks import serving
from benchmarks._modes import compiled
model, mode = serving.bert(), sys.argv[1]
ids = torch.randint(0, 30000, (8, 32))
run = model if mode == "eager" else compiled(model, mode)
with torch.no_grad():
    compiled(torch.nn.Linear(2, 2), "serve")(torch.ones(2))  # loads Dynamo and AOT autograd
    for _ in range(3):
        run(input_ids=ids)
print(serving.peak_bytes())
"""


def peak_bytes() -> int:
    """The most memory that this process has had resident, in bytes. (`getrusage` would also count
    what the process had that started it.)
    """
    (line,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(line) * 1024


def _memory_rows() -> list[Row]:
    """Peak memory of a process over the weights: they are 1, and what is above eager."""
    weights = sum(item.nbytes for item in bert().parameters())
    peaks = {}
    for mode in ("eager", "default", "serve"):
        command = [sys.executable, "-c", _MEMORY, mode]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks[mode] = int(done.stdout.split()[-1])
    return [
        Row(
            f"BERT 8 x 32, peak memory, {mode}",
            "the weights",
            1 + (peaks[mode] - peaks["eager"]) / weights,
            float("nan"),
            float("nan"),
            budget,
            note=f"{(peaks[mode] - peaks['eager']) / 1e6:.0f} MB above eager; the weights "
            f"are {weights / 1e6:.0f} MB",
        )
        for mode, budget in (("default", 2.2), ("serve", 2.5))
    ]


@torch.no_grad()
def run(*, quick: bool = False) -> list[Row]:
    """The rows. Quick: the smallest size alone."""
    rows = []
    for place, (batch, length) in enumerate(SIZES[:1] if quick else SIZES):
        torch._dynamo.reset()
        rows += _bert_rows(batch, length, place, 5 if quick or batch > 8 else 25)
    if not quick:
        torch._dynamo.reset()
        rows += _decode_rows(25)
        torch._dynamo.reset()
        rows += generate_rows(5)
        torch._dynamo.reset()
        rows += mixed_rows(7)
        rows += first_call_rows()
        rows += _memory_rows()
    return rows
