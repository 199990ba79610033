"""Levels 3 and 4 of a conformance run, and runs that are given an executor."""

from __future__ import annotations

import os
import signal
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from tests.sweeps.support import part

from bringup import conformance, report
from bringup.conformance import CaseResult, Conformance, _suite, _use_cases, conformance_page
from bringup.conformance._cases import case_ids, run_case
from bringup.conformance._jobs import Setup, chosen_settings, identity, run_job
from bringup.conformance._worker_pool import Worker
from bringup.errors import CaptureError, DriverError

ALONE = [c for level in (3, 4) for c in case_ids(level) if not c.startswith(_use_cases.RANKED)]
TOGETHER = [case for case in case_ids(3) if case.startswith(_use_cases.RANKED)]
RUNTIME = "runtime/tensors_print*"
SECONDS = 240.0  # of a machine with much else to do


@pytest.fixture(autouse=True)
def _own_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_suite.settings, "cache_dir", lambda: tmp_path)


def figures(found: Conformance) -> list[CaseResult]:
    return [
        CaseResult(one.id, one.outcome, one.native, one.reason, one.samples, one.calls)
        for one in found.results
    ]


class Machines(Executor):
    """Gives each job a machine of its own, a process; the one of the named case dies."""

    def __init__(self, dies: str) -> None:
        self.dies = dies

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        return pool.submit(die) if self.dies in args[1] else pool.submit(fn, *args, **kwargs)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("case", part(ALONE, always=["compile/sizes_change", "train/a_gpt"]))
def test_what_is_done_with_the_simulator_gives_what_the_cpu_does(case: str) -> None:
    result = run_case(case, "npu", 1)
    assert (result.outcome, result.reason) == ("pass", "")
    assert result.seconds > 0


@pytest.mark.parametrize("case", part(TOGETHER, always=["fsdp2/shards_train_as_one_process"]))
def test_two_ranks_are_started_for_what_needs_them(case: str) -> None:
    worker = Worker("sim", 1, SECONDS)
    try:
        result = worker.run(case)
    finally:
        worker.close()
    assert (result.id, result.outcome, result.reason) == (case, "pass", "")


def test_a_rank_that_is_lost_is_the_result_of_its_case() -> None:
    script = """
import json, os, signal, sys
rank = json.loads(sys.argv[1])[3][0]
print(json.dumps({}), flush=True)
case = input()
if rank:
    os.kill(os.getpid(), signal.SIGSEGV)
print(json.dumps({"id": case, "outcome": "failed", "reason": "the peer is gone"}), flush=True)
"""
    worker = Worker("sim", 1, SECONDS, program=["python3", "-c", script])
    worst = worker.run("ddp/x")
    assert (worst.outcome, worst.reason) == ("crashed", "ended with SIGSEGV")


def test_a_wrong_loss_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = _use_cases.train

    def wrong(model: Any, *args: Any, **kwargs: Any) -> list[float]:
        on_cpu = next(model.parameters()).device.type == "cpu"
        return [loss * (1 if on_cpu else 1.01) for loss in losses(model, *args, **kwargs)]

    monkeypatch.setattr(_use_cases, "train", wrong)
    for case in ("train/a_convolutional_network", "graph/a_step_of_training_is_replayed"):
        assert run_case(case, "npu", 1).outcome == "failed"


def test_the_page_has_a_row_for_each_kind_of_case() -> None:
    found = Conformance(
        {"driver": "libx.so"}, [CaseResult(case, "pass") for case in ALONE + TOGETHER]
    )
    rows = conformance_page.outcomes_table(found).rows
    assert sum(int(row[2]) for row in rows) == len(found.results)
    text = report.to_html(conformance_page.page(found))
    for words in ("torch.compile", "mixed precision", "DDP, two ranks", "models that train"):
        assert words in text


def test_what_ran_eagerly_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_use_cases.torch, "compile", lambda function, **options: function)
    result = run_case("compile/sizes_change", "npu", 1)
    assert result.outcome == "failed"
    assert "torch.compile ran nothing compiled" in result.reason


def test_what_a_graph_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: str) -> None:
        raise CaptureError("aten::gelu has no kernel on the device")

    monkeypatch.setitem(_use_cases.LEVELS[3], "graph/x", refuse)
    monkeypatch.setattr("bringup.conformance._cases.USES", _use_cases.LEVELS[3])
    assert run_case("graph/x", "npu", 1).outcome == "refused"


def test_an_executors_results_are_those_of_a_local_run() -> None:
    here = conformance.run_conformance("sim", level=1, pattern="*/copies?[bc]*", seconds=SECONDS)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        there = conformance.run_conformance(
            "sim", level=1, pattern="*/copies?[bc]*", seconds=SECONDS, executor=pool
        )
    assert figures(there) == figures(here)
    assert there.facts == here.facts
    assert len(there.results) > 1


def test_a_worker_that_is_lost_costs_its_case() -> None:
    dies = "runtime/tensors_print_and_convert"
    found = conformance.run_conformance(
        "sim", level=1, pattern="runtime/tensors_*t_*", seconds=SECONDS, executor=Machines(dies)
    )
    outcomes = {one.id: one.outcome for one in found.results}
    assert outcomes.pop(dies) == "crashed"
    assert [*outcomes.values()] == ["pass"]
    (lost,) = found.not_passed
    assert lost.reason.startswith("no result came back: BrokenProcessPool")


def test_a_worker_with_another_driver_is_refused() -> None:
    setup = Setup("sim", 1, SECONDS, "", chosen_settings(), "another")
    with pytest.raises(DriverError, match=r"has another driver .* than the machine that wants"):
        run_job(setup, ("runtime/tensors_print_and_convert",))


def test_workers_of_a_run_have_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            monkeypatch.delenv("BRINGUP_SIM_ISOLATED")
            done: Future[Any] = Future()
            done.set_result(fn(*args))
            return done

    monkeypatch.setenv("BRINGUP_SIM_ISOLATED", "1")
    found = conformance.run_conformance(
        "sim", level=1, pattern=RUNTIME, seconds=SECONDS, executor=Elsewhere()
    )
    assert found.facts["host_visible"] == "False"


def test_dask_runs_the_cases_of_a_conformance_run() -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, protocol="tcp"
    ) as cluster:
        address = cluster.scheduler_address.replace("tcp://", "dask://")
        found = conformance.run_conformance(
            "sim", level=1, pattern=RUNTIME, seconds=SECONDS, executor=address
        )
    assert [one.outcome for one in found.results] == ["pass"]


def test_machines_with_other_folders_have_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "libdriver.so"
    library.write_bytes(b"driver")
    found = []
    for place in ("here", "there"):
        package = tmp_path / place / "some_kernels"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("x = 1")
        monkeypatch.syspath_prepend(package.parent)
        found.append(identity(library, "some_kernels:load"))
    assert found[0] == found[1]
    (package / "kernel.cpp").write_text("")
    assert identity(library, "some_kernels:load") != found[1]
