"""Timing and comparing candidates: interleaved rounds, medians, ratios in one process."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bringup._differences import cosine, gap
from bringup._timing import interleaved
from bringup.cli.demo.modes import Mode, ModelRunner
from bringup.cli.demo.texts import LengthClass, Sentence

Timings = list[dict[int, float]]  # [candidate][number of the sentence]: median milliseconds


@dataclass(frozen=True)
class Row:
    """One line of the table: a mode on a device over the sentences of one length class.

    Attributes:
        mode, device: which candidate.
        bucket: the length class.
        ms: median over the sentences of each one's median time.
        speedup_vs_eager, speedup_vs_inductor: median over the sentences of the ratio of medians, on
            the same device; None where the other did not run.
        max_abs_diff, min_cosine: against eager on cpu, over all sentences of the class.
        host_ops: operators that the host dispatches for the class's middle sentence.
    """

    mode: str
    device: str
    bucket: str
    ms: float
    speedup_vs_eager: float | None
    speedup_vs_inductor: float | None
    max_abs_diff: float
    min_cosine: float
    host_ops: int


@dataclass(frozen=True)
class Pair:
    """Two sentences and the cosine similarity of their embeddings."""

    first: str
    second: str
    cosine: float


def time_all(
    candidates: Sequence[ModelRunner],
    sentences: Sequence[Sentence],
    timed: Sequence[int],
    rounds: int,
) -> Timings:
    """Return median milliseconds of every candidate on the sentences number `timed`; they take
    turns.
    """
    calls = {
        (c, s): candidate.call_on(sentences[s])
        for s in timed
        for c, candidate in enumerate(candidates)
    }
    taken = list(itertools.islice(interleaved(calls), rounds))
    return [
        {s: statistics.median(sampled[c, s] for sampled in taken) / 1e6 for s in timed}
        for c in range(len(candidates))
    ]


def embed_all(candidate: ModelRunner, sentences: Sequence[Sentence]) -> torch.Tensor:
    """Return the embeddings of all sentences, [N, D] on cpu."""
    embeddings = (candidate.call(candidate.prepare(sentence)) for sentence in sentences)
    return torch.cat([embedding.to("cpu", copy=True) for embedding in embeddings])


class _Counter(TorchDispatchMode):  # type: ignore[misc]  # torch is Any to mypy
    """Counts the operators that come through the dispatcher, below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.count: int = 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code runs as compiled while this mode is on."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def count_host_ops(candidate: ModelRunner, sentence: Sentence) -> int:
    """Count the operators that one call dispatches; a captured graph and Inductor's code do not."""
    call = candidate.call_on(sentence)
    with _Counter() as counter:
        call()
    return int(counter.count)


def nearest_pairs(
    sentences: Sequence[Sentence], embeddings: torch.Tensor, count: int = 3
) -> list[Pair]:
    """Return the `count` pairs of sentences with the largest cosine similarity, if there are so
    many.
    """
    cosines = (embeddings @ embeddings.T).triu(diagonal=1)
    cosines[torch.ones_like(cosines).tril().bool()] = -2.0
    available = len(sentences) * (len(sentences) - 1) // 2
    top = cosines.flatten().topk(min(count, available))
    return [
        Pair(
            sentences[place // len(sentences)].text, sentences[place % len(sentences)].text, cosine
        )
        for cosine, place in zip(top.values.tolist(), top.indices.tolist(), strict=True)
    ]


def rows_of(
    candidates: Sequence[ModelRunner],
    sentences: Sequence[Sentence],
    timings: Timings,
    embeddings: Sequence[torch.Tensor],
    reference: torch.Tensor,
) -> list[Row]:
    """Return the table's lines for candidates of one device, over the length classes that were
    timed.

    `embeddings` are those of each candidate, `reference` those of eager on cpu, for all sentences.
    """
    by_mode = {candidate.mode: timings[c] for c, candidate in enumerate(candidates)}
    rows = []
    for c, candidate in enumerate(candidates):
        for length_class in LengthClass:
            members = [
                s for s, sentence in enumerate(sentences) if sentence.length_class is length_class
            ]
            timed = [s for s in members if s in timings[c]]
            if not timed:
                continue
            ours, theirs = embeddings[c][members], reference[members]
            middle = sorted(timed, key=lambda s: sentences[s].tokens)[len(timed) // 2]
            rows.append(
                Row(
                    mode=candidate.mode.value,
                    device=candidate.device,
                    bucket=length_class.value,
                    ms=statistics.median(timings[c][s] for s in timed),
                    speedup_vs_eager=_speedup(by_mode.get(Mode.EAGER), timings[c], timed),
                    speedup_vs_inductor=_speedup(by_mode.get(Mode.INDUCTOR), timings[c], timed),
                    max_abs_diff=gap(ours, theirs, nonfinite_equal=False) or 0.0,
                    min_cosine=min(map(cosine, ours, theirs)),
                    host_ops=count_host_ops(candidate, sentences[middle]),
                )
            )
    return rows


def _speedup(
    peer: dict[int, float] | None, ours: dict[int, float], timed: Sequence[int]
) -> float | None:
    if peer is None:
        return None
    return statistics.median(peer[s] / ours[s] for s in timed)
