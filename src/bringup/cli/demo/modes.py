"""The ways of running the model, each a `ModelRunner`: inputs made beforehand, and one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

import bringup.compiler  # noqa: F401 - makes backend="bringup" known where nothing is installed
from bringup import graphs
from bringup.cli.demo.model import padded_ids
from bringup.cli.demo.texts import Sentence, bucket_for

__all__ = [
    "CapturedBuckets",
    "Mode",
    "ModelRunner",
    "captured",
    "eager",
    "frozen_inductor",
    "fuse",
    "fused",
    "inductor",
    "padding_influence",
]


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
        calls_per_sentence: how often Python reaches into bringup for one `call`, besides dispatched
            operators.
    """

    mode: Mode
    device: str
    prepare: Callable[[Sentence], Any]
    call: Callable[[Any], torch.Tensor]
    calls_per_sentence: int = 0

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


def fuse(embedder: torch.nn.Module) -> Any:
    """Compile the module in place with `backend="bringup"`; returns it."""
    embedder.compile(backend="bringup", dynamic=True)
    return embedder


def fused(compiled: Any, device: str) -> ModelRunner:
    """The fused module at every sentence's own length."""

    def prepare(sentence: Sentence) -> tuple[torch.Tensor, int]:
        return padded_ids(sentence, sentence.tokens, device), sentence.tokens

    return ModelRunner(Mode.FUSED, device, prepare, lambda inputs: compiled(inputs[0], [inputs[1]]))


@dataclass(frozen=True)
class _Bucket:
    graph: Any
    ids: torch.Tensor
    embedding: torch.Tensor


class CapturedBuckets:
    """The fused module as one captured graph per bucket of lengths."""

    def __init__(self, compiled: Any, device: str) -> None:
        self._compiled = compiled
        self._device = device
        self._buckets: dict[int, _Bucket] = {}

    def capture(self, length: int) -> None:
        """Capture the bucket of padded length `length`, unless it is there already."""
        if length in self._buckets:
            return
        ids = torch.zeros(1, length, dtype=torch.long, device=self._device)
        self._compiled(ids, [length - 1])  # compiles, if this is the first
        graph = graphs.CapturedGraph()
        with graphs.capture(graph):
            embedding = self._compiled(ids, [length - 1])
        self._buckets[length] = _Bucket(graph, ids, embedding)

    def serve(self, ids: torch.Tensor, tokens: int) -> torch.Tensor:
        """The embedding of a padded sentence. The tensor is overwritten by the next sentence of its
        bucket.
        """
        bucket = self._buckets[ids.shape[1]]
        bucket.ids.copy_(ids)
        bucket.graph.update({"**.actual_seq_lengths": [tokens]})
        bucket.graph.replay()
        return bucket.embedding

    def __len__(self) -> int:
        return len(self._buckets)


def captured(buckets: CapturedBuckets, device: str) -> ModelRunner:
    """Every sentence padded to its bucket, by update and replay of the bucket's graph."""

    def prepare(sentence: Sentence) -> tuple[torch.Tensor, int]:
        return padded_ids(sentence, bucket_for(sentence.tokens), device), sentence.tokens

    return ModelRunner(
        Mode.CAPTURED, device, prepare, lambda inputs: buckets.serve(*inputs), calls_per_sentence=2
    )


def padding_influence(candidate: ModelRunner, sentence: Sentence) -> float:
    """How much the embedding of a padded sentence depends on what stands behind its length: 0.0
    when all is well.

    For the fused and captured candidates, which take padded ids and a length.
    """
    ids = padded_ids(sentence, bucket_for(sentence.tokens), candidate.device)
    clean = candidate.call((ids, sentence.tokens)).to("cpu", copy=True)
    ids[:, sentence.tokens :] = 2024  # any other token
    dirty = candidate.call((ids, sentence.tokens)).to("cpu", copy=True)
    return float((clean - dirty).abs().max())
