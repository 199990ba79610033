"""Results that are given with out=: every operator with such a form leaves the CPU's results,
shapes and bytes, also around the result, or raises the CPU's type of error, wherever the memory
lies and whoever has the kernel.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from tests.forked_python import OPINFO, output_of_module

MODES = ("visible", "isolated", "kernels", "isolated kernels")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out")
    output_of_module("tests.sweeps.out_programs", str(folder), ",".join(MODES), preload=OPINFO)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_given_results_are_the_cpus_with_the_bytes_around(
    mode: str, reports: Path, sweep_counts: Counter[str]
) -> None:
    *found, last = map(json.loads, (reports / f"{mode}.jsonl").read_text().splitlines())
    counts = Counter(last)
    assert found == []
    assert counts["calls"] > 100
    assert counts["captured calls"] > 10 or "isolated" in mode
    sweep_counts.update(counts)
