"""What must hold for the demo to end well. A gate returns its failures in words."""

from __future__ import annotations

from collections.abc import Sequence

from bringup.cli.demo import modes
from bringup.cli.demo.measure import Row
from bringup.cli.demo.modes import ModelRunner
from bringup.cli.demo.texts import Sentence

COSINE_BOUND = 0.9999


def cosine_failures(rows: Sequence[Row]) -> list[str]:
    """Return the rows whose embeddings do not agree with eager; NaN does not agree."""
    return [
        f"{row.mode} on {row.device}, {row.bucket} sentences: "
        f"cosine {row.min_cosine:.7f} to eager, expected at least {COSINE_BOUND}"
        for row in rows
        if not row.min_cosine >= COSINE_BOUND
    ]


def padding_failures(candidates: Sequence[ModelRunner], sentences: Sequence[Sentence]) -> list[str]:
    """Return the candidates whose embedding changes in a bit with the token ids in padded rows."""
    failures = []
    longest = max(sentence.tokens for sentence in sentences)
    for candidate in candidates:
        influences = [
            modes.padding_influence(candidate, sentence, longest) for sentence in sentences
        ]
        wrong = [influence for influence in influences if influence != 0]  # NaN is wrong too
        if wrong:
            failures.append(
                f"{candidate.name}: other tokens in the padded rows change the embedding of "
                f"{len(wrong)} of {len(sentences)} sentences, the first by {wrong[0]:.1e}"
            )
    return failures
