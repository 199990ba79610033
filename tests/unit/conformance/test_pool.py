"""Worker processes: a case that crashes or hangs costs itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bringup.conformance._worker_pool import Worker
from bringup.errors import DriverError

# Answers as a worker does, and fails as its cases say.
SCRIPT = """
import json, os, signal, sys, time
print(json.dumps({"device": "npu", "process": os.getpid()}), flush=True)
for line in sys.stdin:
    case = line.strip()
    if case == "op/crash/x":
        print("last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if case == "op/exit/x":
        sys.exit(3)
    if case == "op/hang/x":
        signal.pause()
    print(json.dumps({"id": case, "outcome": "pass", "native": True}), flush=True)
"""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    made = Worker("sim", 1, 1.0, program=[sys.executable, "-c", SCRIPT])
    yield made
    made.close()


def test_cases_run_in_one_process(worker: Worker) -> None:
    process = worker.facts()["process"]
    assert worker.run("op/one/x").native
    assert worker.run("op/two/x").id == "op/two/x"
    assert worker.facts()["process"] == process


def test_a_crash_is_the_result_of_its_case_and_the_next_one_runs(worker: Worker) -> None:
    crashed = worker.run("op/crash/x")
    assert crashed.outcome == "crashed"
    assert crashed.reason == "ended with SIGSEGV; last words"
    assert worker.run("op/one/x").outcome == "pass"


def test_a_process_that_exits_says_its_code(worker: Worker) -> None:
    exited = worker.run("op/exit/x")
    assert (exited.outcome, exited.reason) == ("crashed", "ended with exit code 3")


def test_a_hang_is_ended_after_its_time_and_the_next_one_runs(worker: Worker) -> None:
    hung = worker.run("op/hang/x")
    assert (hung.outcome, hung.reason) == ("timeout", "has not ended after 1 s")
    assert hung.seconds >= 1
    assert worker.run("op/one/x").outcome == "pass"


def test_a_process_that_cannot_start_is_an_error_with_its_last_line() -> None:
    worker = Worker(
        "sim", 1, 1.0, program=[sys.executable, "-c", "raise SystemExit('no such driver')"]
    )
    with pytest.raises(DriverError, match="exit code 1; no such driver"):
        worker.facts()
