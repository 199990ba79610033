"""A conformance run: the cases of some levels on a driver, kept as they end, and their sums."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from bringup import devices, settings
from bringup._executors import completed, opened
from bringup._version import __version__
from bringup.conformance._cases import CaseResult, case_ids
from bringup.conformance._jobs import Setup, chosen_settings, end_workers, identity, run_job
from bringup.conformance._samples import described
from bringup.conformance._worker_pool import ORDER
from bringup.errors import BringupError, ModelError


@dataclass(frozen=True)
class Score:
    """A part of a whole, counted natively and in all.

    Attributes:
        native: what passed, or ran, on the device alone.
        total: what passed, or ran, at all.
        whole: of how much.
    """

    native: float
    total: float
    whole: float


@dataclass
class Conformance:
    """What came out of a run.

    Attributes:
        facts: of the driver, the device and torch.
        results: of the cases, in their order.
        resumed: how many of them are from an earlier run.
        regressions: cases that are worse than in the baseline: name, outcome then and now.
        is_interrupted: whether it was stopped before the end.
    """

    facts: dict[str, str]
    results: list[CaseResult] = field(default_factory=list)
    resumed: int = 0
    regressions: list[tuple[str, str, str]] = field(default_factory=list)
    is_interrupted: bool = False

    def tried(self, kind: str) -> list[CaseResult]:
        """Return the cases of a `kind` ("op", or another first part of a name) that were tried."""
        return [one for one in self.results if one.kind == kind and one.outcome != "skipped"]

    def operators(self) -> Score:
        """Return how many operators of OpInfo pass in all dtypes, native or not, of those tried."""
        outcomes: dict[str, list[CaseResult]] = {}
        for one in self.tried("op"):
            outcomes.setdefault(one.subject, []).append(one)
        native = sum(all(one.native for one in ones) for ones in outcomes.values())
        passed = sum(all(one.outcome == "pass" for one in ones) for ones in outcomes.values())
        return Score(native, passed, len(outcomes))

    def cases(self) -> Score:
        """Return how many cases pass, of those that were tried; those of a driver and of the
        runtime that call no operator on the host are native.
        """
        tried = [one for one in self.results if one.outcome != "skipped"]
        passed = [one for one in tried if one.outcome == "pass"]
        return Score(sum(one.native for one in passed), len(passed), len(tried))

    def calls(self) -> Score:
        """Return how many calls of operators in cases that pass ran on the device, of all tried."""
        tried = [one for one in self.results if one.kind in ("op", "module", "optimizer")]
        passed = [one for one in tried if one.outcome == "pass"]
        native = sum(max(one.calls - one.calls_on_host, 0) for one in passed)
        return Score(native, sum(one.calls for one in passed), sum(one.calls for one in tried))

    def seconds(self) -> Score:
        """Return the time of the device's part, without and with what ran on the host for it."""
        tried = [one for one in self.results if one.kind in ("op", "module", "optimizer")]
        passed = [one for one in tried if one.outcome == "pass"]
        native = sum(max(one.seconds - one.seconds_on_host, 0.0) for one in passed)
        whole = sum(one.seconds for one in tried)
        return Score(native, sum(one.seconds for one in passed), whole)

    @property
    def not_passed(self) -> list[CaseResult]:
        """Return cases that were tried and do not pass: refusals, too."""
        return [one for one in self.results if one.outcome not in ("pass", "skipped")]


def run_conformance(
    driver: str = "sim",
    *,
    load: str = "",
    level: int = 2,
    pattern: str = "*",
    every: int = 1,
    samples: int = 10,
    seconds: float = 60.0,
    workers: int = 1,
    executor: Executor | str | None = None,
    resume: bool = False,
    baseline: dict[str, str] | None = None,
    on_result: Callable[[CaseResult, int, int], object] = lambda result, done, of: None,
) -> Conformance:
    """Run the cases of a driver in processes of their own, and return what is known at the end, or
    at Ctrl-C; results are kept in the cache folder case by case.

    Args:
        driver: its library, or its name.
        load: "MODULE:FUNCTION" of a package with kernels for the device, called in each process
            once the driver is loaded. The module has to be importable there.
        level: 0, the functions of the driver; 1, the runtime too; 2, operators, modules and
            optimizers; 3, compiling, mixed precision, graphs, DDP and FSDP2; 4, a GPT and a CNN
            that train.
        pattern: cases whose names match, as in a shell.
        every: of these, each so-and-so-manieth.
        samples: of an operator, at most so many.
        seconds: what one case may take.
        workers: how many processes run at a time on this machine.
        executor: who runs the cases instead: an executor of concurrent.futures, or the address of
            an engine, "dask://HOST:PORT" or "ray://HOST:PORT", whose workers have the same driver,
            torch and package. A worker that is lost costs its case.
        resume: whether the cases of the last run on the same driver and torch are taken over.
        baseline: what `read_baseline` gives: outcomes of an earlier run, for regressions.
        on_result: called with each result, how many there are, and of how many.

    Raises:
        DriverError: the driver cannot be found or loaded.
        ModelError: there is no such level, no such module, or no case has such a name.
        TypeError, ValueError: `executor` is no executor and no address.
        ConnectionError: nothing answers at the address.
    """
    if level not in range(5):
        raise ModelError(f"level {level}: expected 0 to 4")
    library = devices.driver_library(driver)
    found = Conformance({"driver": str(library), "bringup": __version__})
    cases = [f"driver/{check.name}" for check in devices.list_checks()]
    for number in range(1, level + 1):
        cases += case_ids(number)
    wanted = fnmatch.filter(cases, pattern)[::every]
    if not wanted:
        raise ModelError(f"no case matches {pattern!r}: expected a name like 'op/add/float32'")
    if load:
        found.facts["kernels"] = load
    place = driver if library != Path(driver).expanduser().resolve() else str(library)
    setup = Setup(place, samples, seconds, load, chosen_settings(), identity(library, load))
    journal = _Journal(setup)
    known = journal.results(resume)
    found.resumed = sum(case in known for case in wanted)
    run = _Run(found, journal, wanted, known, on_result)
    try:
        if executor is None:
            run.here(setup, workers)
        else:
            with opened(executor) as elsewhere:
                run.by(elsewhere, setup)
    except KeyboardInterrupt:
        found.is_interrupted = True
    found.results = [run.known[case] for case in wanted if case in run.known]
    found.regressions = regressions(found.results, baseline or {})
    return found


def read_baseline(file: Path) -> dict[str, str]:
    """Return the outcomes of an earlier run by case.

    Args:
        file: what `bringup conformance --json` wrote.

    Raises:
        ModelError: the file cannot be read or is none of these.
    """
    try:
        rows = json.loads(file.read_text())["results"]
        return {row["id"]: "native" if row["native"] else row["outcome"] for row in rows}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"{file} is no result of bringup conformance --json: {type(error).__name__}: {error}"
        ) from error


def regressions(
    results: Sequence[CaseResult], baseline: dict[str, str]
) -> list[tuple[str, str, str]]:
    worse = []
    for one in results:
        now = "native" if one.native else one.outcome
        then = baseline.get(one.id, "skipped")
        if then in ORDER and (now not in ORDER or ORDER.index(now) < ORDER.index(then)):
            worse.append((one.id, then, now))
    return worse


@dataclass
class _Run:
    """A run on its way: what is known is kept as it comes."""

    found: Conformance
    journal: _Journal
    wanted: Sequence[str]
    known: dict[str, CaseResult]
    on_result: Callable[[CaseResult, int, int], object]

    def here(self, setup: Setup, workers: int) -> None:
        """Run what is missing on this machine: the driver's functions at once, first."""
        missing = self._missing()
        of_driver = tuple(case for case in missing if case.startswith("driver/"))
        pool = ThreadPoolExecutor(workers, "bringup-conformance")
        try:
            if of_driver:
                self._keep(*run_job(setup, of_driver))
            self.by(pool, setup)
        finally:
            end_workers(setup)  # so that no thread waits for a case
            pool.shutdown(cancel_futures=True)

    def by(self, executor: Executor, setup: Setup) -> None:
        """Run what is missing as jobs of an executor. A case whose worker is lost has crashed."""
        jobs = {case: (setup, (case,)) for case in self._missing()}
        with contextlib.closing(completed(executor, run_job, jobs)) as ended:
            for case, future in ended:
                try:
                    self._keep(*future.result())
                except BringupError:  # it holds for every case
                    raise
                except Exception as error:
                    reason = f"no result came back: {described(error)}"
                    self._keep([CaseResult(case, "crashed", reason=reason)], {})

    def _missing(self) -> list[str]:
        return [case for case in self.wanted if case not in self.known]

    def _keep(self, results: list[CaseResult], facts: dict[str, object]) -> None:
        self.found.facts |= {name: str(value) for name, value in facts.items()}
        for result in results:
            self.known[result.id] = result
            self.journal.add(result)
            done = sum(case in self.known for case in self.wanted)
            self.on_result(result, done, len(self.wanted))


class _Journal:
    """Keep results as lines of a file named by all that they depend on, driver and kernels too."""

    def __init__(self, setup: Setup) -> None:
        text = f"{setup.identity} {setup.samples} {setup.settings}"
        name = hashlib.sha256(text.encode()).hexdigest()[:24]
        self.path = settings.cache_dir() / "conformance" / f"{name}.jsonl"

    def results(self, resume: bool) -> dict[str, CaseResult]:
        """Return what an earlier run kept; without `resume` nothing, and it is forgotten."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not resume:
            self.path.unlink(missing_ok=True)
        if not self.path.exists():
            return {}
        found = {}
        for line in self.path.read_text().splitlines():
            # A line was cut short when its process was killed.
            with contextlib.suppress(ValueError, TypeError):
                row = CaseResult(**json.loads(line))
                found[row.id] = row
        return found

    def add(self, result: CaseResult) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(dataclasses.asdict(result)) + "\n")


def families(results: Iterable[CaseResult]) -> dict[str, list[CaseResult]]:
    """Return the cases of operators by family: the first parts of their names ("nn.functional",
    "linalg", "fft", "special", ...), "tensor" for those without one.

    Args:
        results: of cases.
    """
    found: dict[str, list[CaseResult]] = {}
    for one in results:
        if one.kind == "op":
            family = one.subject.rpartition(".")[0] or "tensor"
            found.setdefault(family, []).append(one)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))
