"""25 architectures of transformers in mode `serve` give what eager gives, however they are used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from tests.sweeps.support import FULL

pytest.importorskip("transformers")

from benchmarks._architectures import ARCHITECTURES, Size
from benchmarks._zoo_checks import CHECKS, check

SIZE = Size(layers=2, hidden=64, inner=128, heads=4, batch=2, length=12)
FIXED = (
    ("roberta", "dynamic"),
    ("gpt_neox", "three batches"),
    ("gemma2", "bfloat16"),
    ("whisper", "static"),
)


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Which product is faster is not the question here."""
    monkeypatch.setenv("BRINGUP_JIT_AUTOTUNE", "0")
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("name", "use"),
    [(name, use) for name in ARCHITECTURES for use in CHECKS] if FULL else FIXED,
)
def test_architecture_gives_eagers_results(name: str, use: str, sweep_counts: Counter[str]) -> None:
    sweep_counts["results"] += check(ARCHITECTURES[name], SIZE, use)
