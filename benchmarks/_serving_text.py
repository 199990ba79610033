"""The serving row of whole texts: `generate`."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks._harness import Row, interleave, row
from benchmarks._serving_models import llama

__all__ = ["generate_rows"]

_TOKENS = 128


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
