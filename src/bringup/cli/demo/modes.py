"""The ways of running the model, each a `ModelRunner`: inputs made beforehand, and one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

import bringup.compiler  # noqa: F401 - makes backend="bringup" known where nothing is installed
from bringup._differences import gap
from bringup.cli.demo.model import padded_ids
from bringup.cli.demo.texts import Sentence
from bringup.cli.trial.inductor import compile_frozen
from bringup.cli.trial.timing import waiting

_PADDING = 5  # rows behind a sentence, in the check that they do not count


class Mode(Enum):
    """How the model runs."""

    EAGER = "eager"
    INDUCTOR = "inductor"
    FROZEN_INDUCTOR = "inductor+frozen"
    FUSED = "fused"
    CAPTURED = "fused+captured"


@dataclass(frozen=True)
class ModelRunner:
    """One mode on one device: `prepare` makes inputs untimed, `call` the embedding [1, D]."""

    mode: Mode
    device: str
    prepare: Callable[[Sentence], Any]
    call: Callable[[Any], torch.Tensor]

    @property
    def name(self) -> str:
        return f"{self.mode.value} on {self.device}"

    def call_on(self, sentence: Sentence) -> Callable[[], object]:
        """Return a call on a sentence, its inputs made now, that waits for the device."""
        inputs = self.prepare(sentence)
        return waiting(lambda: self.call(inputs), self.device != "cpu")


def eager(embedder: torch.nn.Module, device: str) -> ModelRunner:
    """Return plain PyTorch, one sentence a call, no padding."""
    return _runner(Mode.EAGER, device, _masked, embedder)


def inductor(embedder: torch.nn.Module, device: str) -> ModelRunner:
    """Return the same module through `torch.compile` as it comes, one artifact for all lengths."""
    return _runner(Mode.INDUCTOR, device, _masked, torch.compile(embedder, dynamic=True))


def frozen_inductor(
    embedder: torch.nn.Module, device: str, examples: Sequence[Sentence]
) -> ModelRunner:
    """Return the same with Inductor's `freezing`, compiled here for the lengths of `examples`."""
    calls = ((_masked(sentence, device), dict[str, Any]()) for sentence in examples)
    compiled = compile_frozen(embedder, calls, dynamic=True)
    return _runner(Mode.FROZEN_INDUCTOR, device, _masked, compiled)


def fused(embedder: torch.nn.Module, device: str) -> ModelRunner:
    """Return the module in mode `default`, every sentence at its own length."""
    compiled = torch.compile(embedder, backend="bringup", dynamic=True)
    return _runner(Mode.FUSED, device, _with_length, compiled)


def captured(embedder: torch.nn.Module, device: str, ladder: Sequence[int]) -> ModelRunner:
    """Return the module in mode `serve`: padded up to a bucket of the ladder, each one graph."""
    options = {"mode": "serve", "buckets": ladder, "static_outputs": True}
    compiled = torch.compile(embedder, backend="bringup", dynamic=True, options=options)
    return _runner(Mode.CAPTURED, device, _with_length, compiled)


def _runner(
    mode: Mode,
    device: str,
    inputs_of: Callable[[Sentence, str], Any],
    function: Callable[..., torch.Tensor],
) -> ModelRunner:
    return ModelRunner(mode, device, lambda s: inputs_of(s, device), lambda given: function(*given))


def _masked(sentence: Sentence, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    ids = padded_ids(sentence, sentence.tokens, device)
    return ids, torch.ones_like(ids)


def _with_length(sentence: Sentence, device: str) -> tuple[torch.Tensor, list[int]]:
    return padded_ids(sentence, sentence.tokens, device), [sentence.tokens]


def padding_influence(candidate: ModelRunner, sentence: Sentence, longest: int) -> float:
    """Return how much a sentence's embedding depends on what stands behind its length: 0.0 if
    right.
    """
    ids = padded_ids(sentence, min(sentence.tokens + _PADDING, longest), candidate.device)
    lengths = [sentence.tokens]
    clean = candidate.call((ids, lengths)).to("cpu", copy=True)
    ids[:, sentence.tokens :] = 2024  # any other token
    dirty = candidate.call((ids, lengths)).to("cpu", copy=True)
    return gap(clean, dirty, nonfinite_equal=False) or 0.0
