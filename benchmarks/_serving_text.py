"""Serving rows of whole texts: `generate`, and sentences of mixed lengths."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks._harness import Row, interleave, row
from benchmarks._modes import compiled, scope_of
from benchmarks._serving_models import bert, llama
from bringup import kernels

__all__ = ["generate_rows", "mixed_rows"]

_TOKENS = 128
_BATCHES = 24
_CAPTURES = 64
_COMPILES = 32
"""How often Dynamo may compile one function: once for each number of lengths, and more for ones."""


def generate_rows(rounds: int) -> list[Row]:
    """128 tokens behind a prompt of 16, greedy, with a static cache: serve against eager."""
    models = {"eager": llama(), "serve": llama()}
    models["serve"].compile(backend="bringup", options={"mode": "serve"})
    prompt = torch.arange(16)[None] * 37

    def generate(model: Any) -> Any:
        return model.generate(
            prompt,
            max_new_tokens=_TOKENS,
            min_new_tokens=_TOKENS,
            do_sample=False,
            cache_implementation="static",
            return_dict_in_generate=True,
            output_logits=True,
        )

    calls = {name: partial(generate, model) for name, model in models.items()}
    found = {name: call() for name, call in calls.items()}
    _check_tokens(found["serve"], found["eager"], prompt.shape[1])
    samples = interleave(calls, rounds=rounds, calls=1)
    name = f"Llama 8 x 512, generate {_TOKENS} tokens, serve"
    return [row(name, "eager", samples["serve"], samples["eager"], budget=1 / 2.2)]


def _check_tokens(ours: Any, eager: Any, start: int) -> None:
    """Equal, up to a token that rounding chooses: where eager's top two logits are closer than what
    `torch.testing.assert_close` takes for equal.
    """
    for step, logits in enumerate(eager.logits):
        place = start + step
        if torch.equal(ours.sequences[:, place], eager.sequences[:, place]):
            continue
        first, second = logits.topk(2).values[0].tolist()
        closest = 1e-5 + 1.3e-6 * abs(first)
        assert first - second <= closest, f"token {step} differs, {first - second} apart"
        return  # what follows is another text


def _sentences() -> list[list[int]]:
    """Lengths of batches of 1 to 8 sentences of 3 to 128 tokens, most of them short; sentences that
    are next to each other in length share a batch.
    """
    generator = random.Random(0)
    sizes = [generator.randint(1, 8) for _ in range(_BATCHES)]
    lengths = sorted(3 + int(125 * generator.random() ** 2) for _ in range(sum(sizes)))
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    return [lengths[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def mixed_rows(rounds: int) -> list[Row]:
    """A stream of batches of mixed lengths: lengths and buckets in serve mode, against masks and
    symbolic sizes with Inductor.
    """
    with torch._dynamo.config.patch(recompile_limit=_COMPILES):
        return _mixed_rows(rounds)


def _mixed_rows(rounds: int) -> list[Row]:
    batches = [(lengths, _ids(lengths), _mask(lengths)) for lengths in _sentences()]
    model, with_lengths = bert(), kernels.use_lengths(bert())
    longest = Counter(max(lengths) for lengths, _, _ in batches)
    serve = torch.compile(
        with_lengths,
        backend="bringup",
        dynamic=True,
        options={"mode": "serve", "buckets": dict(longest), "max_captures": _CAPTURES},
    )
    inductor = compiled(model, "inductor", dynamic=True)

    def by_lengths() -> list[Tensor]:
        return [serve(ids, actual_seq_lengths=n).last_hidden_state for n, ids, _ in batches]

    def by_masks(function: Callable[..., Any]) -> list[Tensor]:
        return [
            function(input_ids=ids, attention_mask=mask).last_hidden_state
            for _, ids, mask in batches
        ]

    calls: dict[str, Callable[[], list[Tensor]]] = {
        "eager": partial(by_masks, model),
        "inductor": partial(by_masks, inductor),
        "serve": by_lengths,
    }
    expected = by_masks(model)
    for name, call in calls.items():
        with scope_of(name):
            call()  # compiles
            for (lengths, _, _), ours, eager in zip(batches, call(), expected, strict=True):
                _check_rows(lengths, ours, eager)
    samples = interleave(calls, rounds=rounds, calls=1)
    name = f"BERT, {len(batches)} batches of 1 to 8, 3 to 128 tokens, serve, buckets"
    return [
        row(name, "eager", samples["serve"], samples["eager"]),
        row(
            name,
            "Inductor, freezing, dynamic",
            samples["serve"],
            samples["inductor"],
            budget=1 / 1.3,
        ),
    ]


def _ids(lengths: Sequence[int]) -> Tensor:
    generator = torch.Generator().manual_seed(sum(lengths))
    return torch.randint(5, 30000, (len(lengths), max(lengths)), generator=generator)


def _mask(lengths: Sequence[int]) -> Tensor:
    return (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()


def _check_rows(lengths: Sequence[int], ours: Tensor, eager: Tensor) -> None:
    for index, length in enumerate(lengths):
        torch.testing.assert_close(ours[index, :length], eager[index, :length])
