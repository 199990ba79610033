"""Choosing tile sizes by measuring: once, kept, healed, off in CI."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.jit.support import run

from bringup import jit
from bringup.errors import CompileError, KernelError
from bringup.jit.ahead_of_time import autotune

# COST is what a tile size would do to the speed, made plain.
TEXT = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const bringup::View<T, 1> x(args[0]);
  if (COST == 13) return bringup::fail(ctx, "no thirteen");
  for (int64_t i = 0; i < COST; ++i) asm volatile("" ::: "memory");
  x(0) += COST;
  return 0;
}
"""
SLOW, FAST = {"COST": 3_000_000}, {"COST": 1_000}


class Tensor:
    """As much of a tensor as `jit.params` looks at."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.array.itemsize for step in self.array.strides)


def template(*tiles: dict[str, jit.Macro], text: str = TEXT) -> jit.Template:
    return jit.Template(
        text=text, name="cost.cpp", abi="args", dtypes={"T": "x"}, tiles=tiles or (SLOW, FAST)
    )


def params(of: jit.Template | None = None, dtype: str = "float32") -> jit.Params:
    return jit.params(of or template(), x=Tensor(np.zeros(2, dtype)))


class Measured:
    """Prepares runs and counts them."""

    def __init__(self) -> None:
        self.prepared: list[dict[str, Any]] = []

    def __call__(self, candidate: jit.Params) -> Callable[[], object]:
        self.prepared.append(dict(candidate.template.tiles[candidate.tile]))
        binary, x = candidate.template.compile(candidate), np.zeros(2, candidate_dtype(candidate))

        def call() -> None:
            try:
                run(binary, x)
            except AssertionError as error:
                raise KernelError(str(error)) from None

        return call


def candidate_dtype(candidate: jit.Params) -> str:
    return {"float": "float32", "double": "float64"}[candidate.dtypes["T"]]


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("BRINGUP_JIT_AUTOTUNE", "1")
    forget()
    return tmp_path / "cache"


def forget() -> None:
    """As a new process would find it."""
    autotune.forget()


def results(root: Path) -> Path:
    (path,) = (root / "v1" / ".tuning").glob("*.json")
    return path


def edit(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(results(root).read_text())
    change(content)
    results(root).write_text(json.dumps(content))
    forget()


def test_the_fastest_tile_sizes_are_found_once_and_kept(root: Path) -> None:
    """Measured once, persisted, used by the next process."""
    measured = Measured()
    best = jit.tune(params(), measured)
    assert best.template.tiles[best.tile] == FAST
    assert measured.prepared == [SLOW, FAST]
    assert jit.tune(params(), measured).tile == best.tile
    forget()
    assert jit.tuned(params()).tile == best.tile
    assert jit.tune(params(), measured).tile == best.tile
    assert len(measured.prepared) == 2
    (result,) = json.loads(results(root).read_text())["results"].values()
    assert result["tile"] == "COST=1000"
    assert result["seconds"]["COST=3000000"] > result["seconds"]["COST=1000"] > 0


def test_what_was_not_measured_has_the_default_tile_sizes() -> None:
    assert jit.tuned(params()).tile == 0


def test_each_kind_of_call_is_measured_for_itself() -> None:
    measured = Measured()
    jit.tune(params(), measured)
    assert jit.tuned(params(dtype="float64")).tile == 0
    jit.tune(params(dtype="float64"), measured)
    assert jit.tuned(params(dtype="float64")).tile == 1
    assert len(measured.prepared) == 4


def test_another_name_or_number_of_threads_is_measured_for_itself() -> None:
    jit.tune(params(), Measured())
    assert jit.tuned(params(), name="other::op").tile == 0
    assert jit.tuned(params(), threads=12345).tile == 0
    assert jit.tuned(params()).tile == 1


def test_another_content_of_the_source_is_measured_for_itself() -> None:
    jit.tune(params(), Measured())
    assert jit.tuned(params(template(text=TEXT + "// changed"))).tile == 0


def test_all_candidates_are_built_together(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = []

    def prebuild(specs: list[jit.Spec]) -> jit.PrebuildReport:
        batches.append(len(specs))
        return jit.prebuild(specs)

    monkeypatch.setattr(autotune, "prebuild", prebuild)
    jit.tune(params(), Measured())
    assert batches == [2]


def test_a_difference_within_the_noise_leaves_the_default() -> None:
    best = jit.tune(params(template({"COST": 300_000}, {"COST": 300_001})), Measured())
    assert best.tile in (0, 1)  # too close to say, and `fastest` decides
    assert autotune.fastest({"a": 1.0, "b": 0.985}) == "a"
    assert autotune.fastest({"a": 1.0, "b": 0.9}) == "b"


def test_a_candidate_that_refuses_or_does_not_compile_is_left_out(root: Path) -> None:
    best = jit.tune(
        params(template({"COST": 13}, {"COST": "no_such_thing"}, SLOW, FAST)), Measured()
    )
    assert best.tile == 3
    (result,) = json.loads(results(root).read_text())["results"].values()
    assert set(result["seconds"]) == {"COST=3000000", "COST=1000"}


def test_when_none_can_run_the_error_of_the_default_is_raised(root: Path) -> None:
    broken = params(template({"COST": 13}, {"COST": "no_such_thing"}))
    with pytest.raises(KernelError, match="no thirteen"):
        jit.tune(broken, Measured())
    with pytest.raises(CompileError, match="no_such_thing"):
        jit.tune(params(template({"COST": "no_such_thing"}, {"COST": 13})), Measured())
    assert not (root / "v1" / ".tuning").exists()


@pytest.mark.parametrize("variables", [{"CI": "true"}, {"BRINGUP_JIT_AUTOTUNE": "0"}])
def test_it_is_off_in_ci_and_by_setting(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Off in CI. What was measured before is not used there either."""
    jit.tune(params(), Measured())
    monkeypatch.delenv("BRINGUP_JIT_AUTOTUNE")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    measured = Measured()
    assert jit.tuned(params()).tile == 0
    assert jit.tune(params(), measured).tile == 0
    assert measured.prepared == []


def test_the_setting_turns_it_on_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    assert jit.tune(params(), Measured()).tile == 1


def test_nothing_is_measured_while_compiling_is_frozen() -> None:
    measured = Measured()
    with jit.frozen():
        assert jit.tune(params(), measured).tile == 0
    jit.tune(params(), measured)
    with jit.frozen():
        assert jit.tune(params(), measured).tile == 1
    assert len(measured.prepared) == 2


def test_a_template_without_choices_is_left_alone() -> None:
    measured = Measured()
    only = params(template(FAST))
    assert jit.tune(only, measured) is only
    assert measured.prepared == []


def test_an_outdated_result_is_not_used_and_measured_again(root: Path) -> None:
    """A soft mismatch (compiler, version, tile sizes) heals."""
    jit.tune(params(), Measured())

    def outdate(content: dict[str, Any]) -> None:
        (result,) = content["results"].values()
        result["basis"] = "an older compiler"

    edit(root, outdate)
    assert jit.tuned(params()).tile == 0
    measured = Measured()
    assert jit.tune(params(), measured).tile == 1
    assert len(measured.prepared) == 2
    (result,) = json.loads(results(root).read_text())["results"].values()
    assert result["basis"] != "an older compiler"


def test_other_tile_sizes_are_measured_again() -> None:
    jit.tune(params(), Measured())
    wider = template(SLOW, {"COST": 2_000_000}, FAST)  # apart by more than any noise
    assert jit.tuned(params(wider)).tile == 0
    assert jit.tune(params(wider), Measured()).tile == 2


def test_another_machines_results_are_never_overwritten(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hard mismatch (processor, instruction set, threads) is another file."""
    from bringup.jit.ahead_of_time import tuning_results

    jit.tune(params(), Measured())
    path = results(root)
    theirs = path.read_bytes()
    monkeypatch.setattr(tuning_results, "processor_model", lambda: "Another Processor 9000")
    forget()
    assert jit.tuned(params()).tile == 0
    jit.tune(params(), Measured())
    assert path.read_bytes() == theirs
    assert len(list((root / "v1" / ".tuning").iterdir())) == 2


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"bringup_tuning": 1, "machine": {}}', "of another machine"),
        ('{"bringup_tuning": 2}', "of format 2"),
    ],
)
def test_a_broken_file_is_put_aside_and_measured_again(
    root: Path, damage: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    jit.tune(params(), Measured())
    results(root).write_text(damage)
    forget()
    assert jit.tuned(params()).tile == 0
    with caplog.at_level(logging.WARNING, "bringup.jit"):
        assert jit.tune(params(), Measured()).tile == 1
    assert words in caplog.text
    assert results(root).with_suffix(".broken").read_text() == damage
    forget()
    assert jit.tuned(params()).tile == 1


def test_a_result_that_names_no_tile_sizes_of_the_template_is_not_used(root: Path) -> None:
    jit.tune(params(), Measured())

    def rename(content: dict[str, Any]) -> None:
        (result,) = content["results"].values()
        result["tile"] = "COST=4"

    edit(root, rename)
    assert jit.tuned(params()).tile == 0


def test_a_cache_that_cannot_be_written_keeps_results_for_the_process(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from bringup.jit.files.layout import StoreUnwritableError

    store = jit.cache()
    jit.prebuild([candidate.spec() for candidate in (params(), params().with_tile(1))])

    def unwritable(name: str) -> Path:
        raise StoreUnwritableError("read-only")

    monkeypatch.setattr(store.layout, "folder", unwritable)
    with caplog.at_level(logging.WARNING, "bringup.jit"):
        assert jit.tune(params(), Measured()).tile == 1
    assert "hold for this process only: read-only" in caplog.text
    assert jit.tuned(params()).tile == 1


def test_threads_that_tune_at_once_measure_once() -> None:
    measured = Measured()
    found: list[jit.Params] = []
    threads = [
        threading.Thread(target=lambda: found.append(jit.tune(params(), measured)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [best.tile for best in found] == [1] * 4
    assert len(measured.prepared) == 2


def tune_two(root: str, dtype: str, cost: int) -> None:
    os.environ.update(BRINGUP_CACHE_DIR=root, BRINGUP_JIT_AUTOTUNE="1")
    for step in range(3):
        jit.tune(params(template(SLOW, {"COST": cost + step}), dtype), Measured(), name=f"n{step}")


def test_two_processes_that_tune_at_once_lose_nothing(root: Path) -> None:
    """What each has measured is merged when it is saved."""
    context = multiprocessing.get_context("spawn")
    jobs = [
        context.Process(target=tune_two, args=(str(root), dtype, cost))
        for dtype, cost in (("float32", 1000), ("float64", 2000))
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(timeout=120)
    assert [job.exitcode for job in jobs] == [0, 0]
    kept = json.loads(results(root).read_text())["results"]
    assert sorted(result["tile"] for result in kept.values()) == [
        *("COST=1000", "COST=1001", "COST=1002", "COST=2000", "COST=2001", "COST=2002")
    ]


def test_without_a_compiler_the_default_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jit.tune(params(), Measured())
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("BRINGUP_JIT_CXX", raising=False)
    assert jit.tuned(params()).tile == 0


def test_results_go_with_the_cache(root: Path) -> None:
    jit.tune(params(), Measured())
    shutil.rmtree(root)
    assert jit.tuned(params()).tile == 0
