"""25 architectures of transformers give what eager gives: in mode `serve`, however they are used,
and compiled for a device by torch.compile's default backend.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from tests.sweeps.support import FULL, part

pytest.importorskip("transformers")

from benchmarks._architectures import ARCHITECTURES, Size
from benchmarks._zoo_checks import CHECKS, check

from bringup import devices
from bringup.conformance._samples import Mover

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


# Off the CPU its experts are counted by a histogram of integers, which the CPU's kernel lacks.
WITHOUT_KERNEL = {"granite_moe"}


@pytest.mark.parametrize("name", part([n for n in ARCHITECTURES if n not in WITHOUT_KERNEL]))
@torch.no_grad()
def test_architecture_compiled_for_the_device_gives_what_the_cpu_gives(
    name: str, sweep_counts: Counter[str]
) -> None:
    devices.load_driver("sim")
    architecture = ARCHITECTURES[name]
    model, inputs = architecture.build(SIZE), architecture.inputs(SIZE, padded=True)
    expected = model(**inputs).last_hidden_state
    compiled = torch.compile(model.to("npu"))
    got = compiled(**Mover("npu")(inputs)).last_hidden_state
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-5)
    sweep_counts["results"] += 1
