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

__all__ = [
    "Mode",
    "ModelRunner",
    "captured",
    "eager",
    "frozen_inductor",
    "fused",
    "inductor",
    "padding_influence",
]


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
    """One mode on one device.

    Attributes:
        mode: how the model runs.
        device: where.
        prepare: makes the inputs of a sentence, outside of what is timed.
        call: runs the model on them and returns the embedding [1, D]; what is timed.
    """

    mode: Mode
    device: str
    prepare: Callable[[Sentence], Any]
    call: Callable[[Any], torch.Tensor]

    @property
    def name(self) -> str:
        """For people: the mode on the device."""
        return f"{self.mode.value} on {self.device}"


def _masked_inputs(device: str) -> Callable[[Sentence], tuple[torch.Tensor, torch.Tensor]]:
    def prepare(sentence: Sentence) -> tuple[torch.Tensor, torch.Tensor]:
        ids = padded_ids(sentence, sentence.tokens, device)
        return ids, torch.ones_like(ids)

    return prepare


def eager(embedder: torch.nn.Module, device: str) -> ModelRunner:
    """Plain PyTorch, one sentence a call, no padding."""
    return ModelRunner(Mode.EAGER, device, _masked_inputs(device), lambda inputs: embedder(*inputs))


def inductor(embedder: torch.nn.Module, device: str) -> ModelRunner:
    """The same module through `torch.compile` as it comes, one artifact for all lengths."""
    compiled = torch.compile(embedder, dynamic=True)
    return ModelRunner(
        Mode.INDUCTOR, device, _masked_inputs(device), lambda inputs: compiled(*inputs)
    )


def frozen_inductor(
    embedder: torch.nn.Module, device: str, examples: Sequence[Sentence]
) -> ModelRunner:
    """The same with Inductor's `freezing`: weights are constants, and packed as it sees fit.

    Compiled here, for the lengths of `examples`: Dynamo looks at the global option, and without the
    option of this module it would take the artifact of `inductor`, which it takes for the same.
    """
    from torch._inductor import config

    compiled = torch.compile(embedder, dynamic=True, options={"freezing": True})
    prepare = _masked_inputs(device)
    with config.patch(freezing=True), torch.no_grad():
        for sentence in examples:
            compiled(*prepare(sentence))
    return ModelRunner(Mode.FROZEN_INDUCTOR, device, prepare, lambda inputs: compiled(*inputs))


def fused(embedder: torch.nn.Module, device: str) -> ModelRunner:
    """The module in mode `default`, every sentence at its own length."""
    compiled = torch.compile(embedder, backend="bringup", dynamic=True)
    return ModelRunner(
        Mode.FUSED, device, _inputs_with_length(device), lambda inputs: compiled(*inputs)
    )


def captured(embedder: torch.nn.Module, device: str, ladder: Sequence[int]) -> ModelRunner:
    """The module in mode `serve`: padded up to a bucket of the ladder, one graph a bucket."""
    compiled = torch.compile(
        embedder,
        backend="bringup",
        dynamic=True,
        options={"mode": "serve", "buckets": ladder, "static_outputs": True},
    )
    return ModelRunner(
        Mode.CAPTURED, device, _inputs_with_length(device), lambda inputs: compiled(*inputs)
    )


def _inputs_with_length(device: str) -> Callable[[Sentence], tuple[torch.Tensor, list[int]]]:
    def prepare(sentence: Sentence) -> tuple[torch.Tensor, list[int]]:
        return padded_ids(sentence, sentence.tokens, device), [sentence.tokens]

    return prepare


def padding_influence(candidate: ModelRunner, sentence: Sentence, longest: int) -> float:
    """How much the embedding of a sentence that is padded, to `longest` tokens at most, depends on
    what stands behind its length: 0.0 when all is well.

    For the fused and captured candidates, which take padded ids and a length.
    """
    ids = padded_ids(sentence, min(sentence.tokens + _PADDING, longest), candidate.device)
    lengths = [sentence.tokens]
    clean = candidate.call((ids, lengths)).to("cpu", copy=True)
    ids[:, sentence.tokens :] = 2024  # any other token
    dirty = candidate.call((ids, lengths)).to("cpu", copy=True)
    return gap(clean, dirty, nonfinite_equal=False) or 0.0
