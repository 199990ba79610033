"""Many kernels beforehand: here, in other processes, on other machines."""

from __future__ import annotations

import functools
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest
from tests.unit.jit.support import ADD, run

from bringup import jit
from bringup.errors import CompileError, MissingKernelError
from bringup.jit import Source, Spec
from bringup.jit.store import bundle

np = pytest.importorskip("numpy")
ADDERS = [Spec(Source(text=ADD, name="add.cpp"), {"N": n}) for n in range(1, 4)]


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "cache"
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(root))
    return root


class Elsewhere(Executor):
    """A machine of its own, in this process: it gets pickles, has its own cache, sends pickles."""

    def __init__(self, root: Path, around: Callable[[], object] = lambda: None) -> None:
        self.root, self.around, self.sent = root, around, 0

    def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        future: Future[object] = Future()
        work = pickle.loads(pickle.dumps(functools.partial(fn, *args, **kwargs)))
        here = os.environ["BRINGUP_CACHE_DIR"]
        os.environ["BRINGUP_CACHE_DIR"] = str(self.root)
        try:
            self.around()
            answer = pickle.dumps(work())
        except Exception as error:
            future.set_exception(error)
        else:
            self.sent += len(answer)
            future.set_result(pickle.loads(answer))
        finally:
            os.environ["BRINGUP_CACHE_DIR"] = here
        return future


def test_what_is_missing_is_built_and_what_is_there_is_a_hit() -> None:
    jit.compile(ADDERS[1].source, macros={"N": 2})
    report = jit.prebuild(ADDERS, workers=2)
    assert [outcome.status for outcome in report.outcomes] == ["built", "hit", "built"]
    assert [outcome.spec for outcome in report.outcomes] == ADDERS
    assert all(outcome.seconds > 0 and outcome.worker for outcome in report.built)
    assert str(report) == "2 built, 1 in the cache, 0 failed"
    with jit.frozen():
        for n, outcome in enumerate(report.outcomes, 1):
            assert jit.compile(outcome.spec.source, macros={"N": n}).key == outcome.key


def test_two_compilers_run_at_a_time_when_two_workers_are_asked_for(
    tmp_path: Path, before_builds: Callable[[str], None]
) -> None:
    # Each build waits until the other one is there: alone, it would never end.
    before_builds(
        f"touch {tmp_path}/at.$$\n"
        f"while [ $(ls {tmp_path}/at.* | wc -l) -lt 2 ]; do sleep 0.01; done"
    )
    assert len(jit.prebuild(ADDERS[:2], workers=2).built) == 2


def test_one_that_fails_does_not_stop_the_others() -> None:
    bad = Spec(Source(text="no such thing;", name="bad.cpp"))
    gone = Spec(Source("/nowhere/gone.cpp"))
    odd = Spec(Source(text=ADD), target="toaster")
    report = jit.prebuild([bad, ADDERS[0], gone, odd])
    assert [outcome.status for outcome in report.outcomes] == [
        "failed",
        "built",
        "failed",
        "failed",
    ]
    assert [type(outcome.error) for outcome in report.failed] == [
        CompileError,
        FileNotFoundError,
        ValueError,
    ]
    with pytest.raises(CompileError) as raised:
        report.check()
    text = str(raised.value)
    assert text.startswith("3 of 4 kernels could not be built:\n- failed: bad.cpp for cpu: ")
    assert "gone.cpp" in text
    assert "target 'toaster': expected one of" in text


def test_a_report_without_failures_passes_its_check() -> None:
    report = jit.prebuild(ADDERS[:1])
    assert report.check() is report


def test_a_spec_that_is_given_twice_is_built_once() -> None:
    assert len(jit.prebuild([ADDERS[0], Spec(ADDERS[0].source, ["N=1"])]).outcomes) == 1


def test_targets_take_the_place_of_the_specs_own() -> None:
    report = jit.prebuild([Source(text=ADD, name="add.cpp")], targets=["cpu", "sim"]).check()
    assert [outcome.spec.target for outcome in report.outcomes] == ["cpu", "sim"]
    with jit.frozen():
        jit.compile(Source(text=ADD, name="add.cpp"), target="sim")


def test_nothing_to_build_is_an_empty_report() -> None:
    assert jit.prebuild([]).outcomes == ()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"specs": [3]}, TypeError, r"jit\.Spec, jit\.Source or jit\.Params, got int \(3\)"),
        ({"targets": "cpu"}, TypeError, r"targets='cpu'\): expected a list of targets"),
        ({"executor": 3}, TypeError, r"executor=: expected an executor of .*, got int \(3\)"),
        ({"executor": "dask:/x"}, ValueError, r"'dask:/x': expected dask://HOST:PORT or ray://"),
        ({"executor": "mpi://a:1"}, ValueError, r"expected dask://HOST:PORT or ray://HOST:PORT"),
        ({"workers": 0}, ValueError, r"workers=0\): expected a positive number"),
        (
            {"workers": 2, "executor": Elsewhere(Path())},
            ValueError,
            r"workers= is for its own threads; executor= brings its own",
        ),
    ],
)
def test_arguments_that_cannot_be_are_refused(
    arguments: dict[str, object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        jit.prebuild(**{"specs": ADDERS, **arguments})  # type: ignore[arg-type]


def test_processes_build_into_the_cache_they_share(root: Path) -> None:
    """Any `concurrent.futures` executor."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        report = jit.prebuild(ADDERS, executor=pool).check()
    assert len(report.built) == 3
    assert all(not outcome.worker.endswith(f":{os.getpid()}") for outcome in report.built)
    assert len(jit.cache().entries()) == 3


def test_a_worker_of_another_machine_sends_what_it_built(root: Path, tmp_path: Path) -> None:
    farm = Elsewhere(tmp_path / "farm")
    report = jit.prebuild(ADDERS, executor=farm).check()
    shutil.rmtree(tmp_path / "farm")
    assert len(report.built) == 3
    with jit.frozen():
        binary = jit.compile(ADDERS[1].source, macros={"N": 2})
    assert binary.path.is_relative_to(root)
    x = np.zeros(3, np.float32)
    run(binary, x)
    assert x.tolist() == [2, 2, 2]


def test_what_is_in_the_cache_is_not_sent_to_a_worker(tmp_path: Path) -> None:
    jit.prebuild(ADDERS)
    farm = Elsewhere(tmp_path / "farm")
    assert len(jit.prebuild(ADDERS, executor=farm).hits) == 3
    assert farm.sent == 0


def test_a_header_that_changes_is_seen_in_an_entry_that_came_from_a_worker(tmp_path: Path) -> None:
    (tmp_path / "v.h").write_text("#define V 1\n")
    (tmp_path / "k.cpp").write_text('#include "v.h"\nextern "C" int run() { return V; }\n')
    spec = Spec(Source(tmp_path / "k.cpp"))
    jit.prebuild([spec], executor=Elsewhere(tmp_path / "farm")).check()
    (tmp_path / "v.h").write_text("#define V 2\n")
    with jit.frozen(), pytest.raises(MissingKernelError):
        jit.compile(spec.source)


def test_a_worker_whose_headers_differ_is_told_apart(tmp_path: Path) -> None:
    header = tmp_path / "v.h"
    header.write_text("#define V 1\n")
    (tmp_path / "k.cpp").write_text('#include "v.h"\nextern "C" int run() { return V; }\n')

    class ChangedMeanwhile(Elsewhere):
        def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
            future = super().submit(fn, *args, **kwargs)
            header.write_text("#define V 2\n")
            return future

    farm = ChangedMeanwhile(tmp_path / "farm")
    report = jit.prebuild([Source(tmp_path / "k.cpp")], executor=farm)
    assert "headers or libraries have another content than those here" in str(
        report.failed[0].error
    )
    assert str(header) in str(report.failed[0].error)


def test_a_worker_with_another_compiler_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = tmp_path / "other-c++"
    wrapper.write_text('#!/bin/sh\nexec c++ "$@"\n')
    wrapper.chmod(0o755)
    farm = Elsewhere(tmp_path / "farm", lambda: monkeypatch.setenv("BRINGUP_JIT_CXX", str(wrapper)))
    report = jit.prebuild(ADDERS[:1], executor=farm)
    assert "refused by worker" in str(report.failed[0].error)
    assert str(wrapper) in str(report.failed[0].error)
    assert "whose workers have the same of both" in str(report.failed[0].error)


def test_an_entry_that_was_damaged_on_its_way_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bringup.jit.ahead_of_time import prebuild

    def damaged(entry: Path) -> bundle.Packed:
        packed = bundle.pack_entry(entry)
        return replace(packed, files={**packed.files, "kernel.so": b"\x7fELF"})

    monkeypatch.setattr(prebuild, "pack_entry", damaged)
    report = jit.prebuild(ADDERS[:1], executor=Elsewhere(tmp_path / "farm"))
    assert "kernel.so is damaged" in str(report.failed[0].error)
    assert jit.cache().entries() == []


def test_an_entry_that_was_built_from_something_else_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bringup.jit.ahead_of_time import prebuild

    other = jit.compile(Source(text="int run;", name="k.c"))
    packed = bundle.pack_entry(other.path.parent)
    monkeypatch.setattr(prebuild, "pack_entry", lambda entry: packed)
    report = jit.prebuild(ADDERS[:1], executor=Elsewhere(tmp_path / "farm"))
    assert "built something else than was asked for" in str(report.failed[0].error)
    assert [entry.name for entry in jit.cache().entries()] == ["k.c"]


def test_workers_that_die_fail_their_specs_and_nothing_else() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with pytest.raises(Exception, match="terminated abruptly"):
            pool.submit(os._exit, 1).result()
        report = jit.prebuild(ADDERS[:2], executor=pool)
    assert len(report.failed) == 2
    assert "terminated abruptly" in str(report.failed[0].error) or "not usable" in str(
        report.failed[0].error
    )


def test_prebuild_and_a_program_that_needs_the_kernel_build_it_once(
    counted: Callable[[], int],
) -> None:
    threads = [threading.Thread(target=jit.prebuild, args=(ADDERS[:1],)) for _ in range(3)]
    for thread in threads:
        thread.start()
    jit.compile(ADDERS[0].source, macros={"N": 1})
    for thread in threads:
        thread.join()
    assert counted() == 1


def test_a_prebuild_that_is_interrupted_starts_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(Elsewhere):
        """Raises in the second job, as Ctrl-C would, and holds what comes after."""

        held: list[Future[object]]

        def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
            future: Future[object] = Future()
            self.held = [*getattr(self, "held", []), future]
            if len(self.held) == 3:
                raise KeyboardInterrupt
            return future

    farm = Interrupted(tmp_path / "farm")
    with pytest.raises(KeyboardInterrupt):
        jit.prebuild(ADDERS, executor=farm)
    assert [future.cancelled() for future in farm.held] == [True, True, False]


def test_dask_workers_build_into_the_cache() -> None:
    """Dask's executor, in a process of its own, for its loop logs as it ends."""
    pytest.importorskip("distributed")
    script = (
        "from distributed import Client\n"
        "from bringup import jit\n"
        f"specs = [jit.Spec(jit.Source(text={ADD!r}), {{'N': n}}) for n in (1, 2)]\n"
        "with Client(processes=False, n_workers=1, dashboard_address=None) as client:\n"
        "    print(jit.prebuild(specs, executor=client.get_executor()).check())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4] / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2 built, 0 in the cache, 0 failed\n"


def test_without_a_compiler_a_kernel_that_is_there_is_a_hit_and_another_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prebuild says what is missing on a machine without a compiler."""
    jit.prebuild(ADDERS[:2]).check()
    monkeypatch.setenv("PATH", str(tmp_path))
    report = jit.prebuild(ADDERS)
    assert [outcome.status for outcome in report.outcomes] == ["hit", "hit", "failed"]
    assert "no compiler for target 'cpu'" in str(report.failed[0].error)
