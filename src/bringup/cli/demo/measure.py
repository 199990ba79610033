"""Timing and comparing candidates: interleaved rounds, medians, ratios in one process."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bringup._differences import cosine, gap
from bringup.cli.demo.modes import Mode, ModelRunner
from bringup.cli.demo.texts import LengthClass, Sentence
from bringup.cli.trial.timing import Limits, Rounds
from bringup.report import Ratio

SentenceRounds = Rounds[tuple[str, int]]
"""Rounds over the sentences of a length class: by mode and number of the sentence."""


@dataclass(frozen=True)
class Row:
    """One line of the table: a mode on a device over the sentences of one length class.

    Attributes:
        mode, device: which candidate.
        bucket: the length class.
        ms: median over the sentences of each one's median time.
        speedup_vs_eager, speedup_vs_inductor: how many times as long the other takes for the
            sentences, in the same rounds on the same device; None where it did not run.
        max_abs_diff, min_cosine: against eager on cpu, over all sentences of the class.
        host_ops: operators that the host dispatches for the class's middle sentence.
    """

    mode: str
    device: str
    bucket: str
    ms: float
    speedup_vs_eager: Ratio | None
    speedup_vs_inductor: Ratio | None
    max_abs_diff: float
    min_cosine: float
    host_ops: int


@dataclass(frozen=True)
class Pair:
    """Two sentences and the cosine similarity of their embeddings."""

    first: str
    second: str
    cosine: float


def sentence_rounds() -> SentenceRounds:
    """Return rounds in which modes are compared, all their sentences together."""
    return Rounds(group=itemgetter(0))


def time_sentences(
    rounds: SentenceRounds,
    candidates: Sequence[ModelRunner],
    sentences: Sequence[Sentence],
    timed: Sequence[int],
    limits: Limits,
) -> None:
    """Take rounds more of all candidates on the sentences number `timed`; they take turns."""
    calls = {
        (candidate.mode.value, s): candidate.call_on(sentences[s])
        for s in timed
        for candidate in candidates
    }
    rounds.take(calls, baseline=candidates[0].mode.value, limits=limits)


def medians(rounds: SentenceRounds, mode: Mode) -> dict[int, float]:
    """Return the median milliseconds of a mode, by the number of the sentence."""
    taken: dict[int, list[float]] = {}
    for sampled in rounds.taken:
        for (name, s), nanoseconds in sampled.items():
            if name == mode.value:
                taken.setdefault(s, []).append(nanoseconds / 1e6)
    return {s: statistics.median(times) for s, times in taken.items()}


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
    """Return the at most `count` pairs of sentences with the largest cosine similarity."""
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
    timings: Mapping[LengthClass, SentenceRounds],
    embeddings: Sequence[torch.Tensor],
    reference: torch.Tensor,
) -> list[Row]:
    rows = []
    for candidate, own in zip(candidates, embeddings, strict=True):
        for length_class, rounds in timings.items():
            times = medians(rounds, candidate.mode)
            if not times:
                continue
            members = [
                s for s, sentence in enumerate(sentences) if sentence.length_class is length_class
            ]
            ours, theirs = own[members], reference[members]
            middle = sorted(times, key=lambda s: sentences[s].tokens)[len(times) // 2]
            rows.append(
                Row(
                    mode=candidate.mode.value,
                    device=candidate.device,
                    bucket=length_class.value,
                    ms=statistics.median(times.values()),
                    speedup_vs_eager=_speedup(rounds, Mode.EAGER, candidate.mode),
                    speedup_vs_inductor=_speedup(rounds, Mode.INDUCTOR, candidate.mode),
                    max_abs_diff=gap(ours, theirs, nonfinite_equal=False) or 0.0,
                    min_cosine=min(map(cosine, ours, theirs)),
                    host_ops=count_host_ops(candidate, sentences[middle]),
                )
            )
    return rows


def _speedup(rounds: SentenceRounds, peer: Mode, mode: Mode) -> Ratio | None:
    both = (peer.value, mode.value)
    return rounds.ratio(*both) if rounds.has(*both) else None
