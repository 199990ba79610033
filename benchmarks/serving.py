"""A user's own model through the documented API, against Inductor with freezing.

transformers' models with random weights: BERT of MiniLM's shape at three sizes, and one decode step
of a Llama with a static cache. All take turns in one process, with the same threads. A row's ratio
is our time over the peer's.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks._harness import Row, interleave, row

SIZES = ((1, 16), (8, 32), (32, 64))
BUDGETS = {"serve": (0.5, 0.91, 1.0), "default": (0.77, 1.0, 1.03), "max": (0.83, 0.83, 0.83)}
"""The most that our time may be of Inductor's, by mode and size."""


def bert() -> torch.nn.Module:
    """BERT of MiniLM's shape: six layers of 384, 10.6 million weights besides the embeddings."""
    import transformers as hf

    torch.manual_seed(0)
    config = hf.BertConfig(
        hidden_size=384, intermediate_size=1536, num_attention_heads=12, num_hidden_layers=6
    )
    return _frozen(hf.BertModel(config, add_pooling_layer=False))


def llama() -> torch.nn.Module:
    """A Llama of eight layers of 512."""
    import transformers as hf

    torch.manual_seed(0)
    config = hf.LlamaConfig(
        hidden_size=512,
        intermediate_size=1376,
        num_attention_heads=8,
        num_key_value_heads=4,
        num_hidden_layers=8,
        vocab_size=8000,
        max_position_embeddings=512,
    )
    return _frozen(hf.LlamaForCausalLM(config))


def _frozen(model: torch.nn.Module) -> torch.nn.Module:
    return model.eval().requires_grad_(False)


def compiled(model: torch.nn.Module, mode: str) -> Callable[..., object]:
    """In one of our modes, or by Inductor with freezing."""
    if mode == "inductor":
        return torch.compile(model, options={"freezing": True})
    return torch.compile(model, backend="bringup", options={"mode": mode})


def _first_calls(calls: Mapping[str, Callable[[], Tensor]]) -> dict[str, Tensor]:
    """What each gives, compiled here: Dynamo looks at the global option for freezing."""
    from torch._inductor import config

    results = {}
    for name, call in calls.items():
        scope: AbstractContextManager[object] = (
            config.patch(freezing=True) if name.startswith("inductor") else nullcontext()
        )
        with scope:
            call()
            results[name] = call().clone()
    return results


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
    _check(_first_calls(calls))
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
    _check(_first_calls(calls))
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
model, mode = serving.bert(), sys.argv[1]
ids = torch.randint(0, 30000, (8, 32))
run = model if mode == "eager" else serving.compiled(model, mode)
with torch.no_grad():
    serving.compiled(torch.nn.Linear(2, 2), "serve")(torch.ones(2))  # loads Dynamo and AOT autograd
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
        rows += _memory_rows()
    return rows
