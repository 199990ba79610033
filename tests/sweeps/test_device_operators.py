"""OpInfo on the device: every strided sample of torch's own operator tests gives the CPU's results
and gradients, but for what torch itself does otherwise off the CPU.

float32 runs forward and backward; bfloat16, float16, int64 and complex64 forward. Two modes: the
host sees device memory (the fallback works on the same bytes), and it does not (the fallback
copies, and a host that touches device memory is stopped); the second is a process of its own.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import torch
from tests.forked_python import OPINFO, output_of_module
from tests.sweeps.support import FULL, PARTS, part, seed

from bringup import devices
from bringup.conformance._opinfo import TORCHS_OWN, Failure, operators, sweep

DTYPES = ("float32", "bfloat16", "float16", "int64", "complex64")
# Of a sweep in a process of its own: which of how many parts, as `part` chooses.
SLICE = ("--first", "0", "--step", "1") if FULL else ("--first", str(seed()), "--step", str(PARTS))


@pytest.fixture(scope="module", autouse=True)
def npu() -> devices.DriverInfo:
    return devices.load_driver("sim")


def cases() -> list[Any]:
    chosen = []
    for name in DTYPES:
        dtype = getattr(torch, name)
        for op in part(operators(dtype)):
            chosen.append(pytest.param(op, dtype, id=f"{name}-{op.full_name}"))
    return chosen


def told_by(*arguments: str) -> dict[str, Any]:
    """The report of a process that sweeps a part."""
    said = output_of_module(
        "tests.sweeps.device_operators", *arguments, timeout=7200, preload=OPINFO
    )
    report: dict[str, Any] = json.loads(said)
    return report


def unexpected(failures: list[Failure]) -> list[Failure]:
    """Those that are not listed."""
    return [f for f in failures if not f.is_torchs_own]


def absent(failures: list[Failure], names: set[str]) -> list[Any]:
    """Samples of these operators that torch itself is said to do otherwise, and that passed."""
    failed = {(f.operator, f.sample, f.phase) for f in failures}
    return [key for key in TORCHS_OWN if key[0] in names and key not in failed]


@pytest.mark.slow
@pytest.mark.parametrize(("op", "dtype"), cases())
def test_operator_gives_the_cpus_results_and_gradients(
    op: Any, dtype: torch.dtype, sweep_counts: Counter[str]
) -> None:
    failures = list(sweep(op, dtype, sweep_counts, "npu"))
    assert unexpected(failures) == []
    assert absent(failures, {op.full_name}) == []


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES if FULL else ["float32"])
def test_operators_give_the_cpus_results_where_the_host_sees_no_device_memory(
    dtype: str, sweep_counts: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRINGUP_SIM_ISOLATED", "1")
    told = told_by("--dtype", dtype, *SLICE)
    assert not told["host_visible"]
    assert told["counts"]["samples"] > 0
    sweep_counts.update(told["counts"])
    failures = [Failure(**failure) for failure in told["failures"]]
    assert unexpected(failures) == []
    assert absent(failures, set(told["operators"])) == []


@pytest.mark.slow
def test_modules_are_the_cpus_where_the_host_sees_no_device_memory(
    sweep_counts: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRINGUP_SIM_ISOLATED", "1")
    told = told_by("--modules", *SLICE)
    assert not told["host_visible"]
    assert told["counts"]["backwards"] > 0
    sweep_counts.update(told["counts"])
    assert told["failures"] == []


def test_a_sample_is_moved_as_it_lies_in_memory() -> None:
    from bringup.conformance._samples import Mover

    base = torch.arange(12.0)
    view, other = base.as_strided((3, 2), (1, 4), 2), base[3:]
    move = Mover("npu")
    there, second, again, place = move((view, other, view, "cpu"))
    assert there is again
    assert (there.stride(), there.storage_offset()) == ((1, 4), 2)
    assert there.cpu().equal(view)
    second.fill_(-1)
    assert there.cpu()[1, 0] == -1  # they share storage there, too
    assert place == torch.device("npu")
    assert move.moved
    assert not Mover("npu").moved
