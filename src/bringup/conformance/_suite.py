"""A conformance run: the cases of some levels on a driver, kept as they end, and what they add up
to.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import hashlib
import importlib.util
import json
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bringup import devices, settings
from bringup._version import __version__
from bringup.conformance._cases import CaseResult, case_ids
from bringup.conformance._worker_pool import Worker
from bringup.errors import ModelError

# From worst to best; a refusal is better than a wrong number, and no pass.
_ORDER = ("crashed", "timeout", "failed", "refused", "pass", "native")


@dataclass(frozen=True)
class Score:
    """A part of a whole, counted natively and in all.

    Attributes:
        native: what passed, or ran, on the device alone.
        total: what passed, or ran, at all.
        whole: of how much.

    Examples:
        >>> from bringup import conformance
        >>> cases = [conformance.CaseResult("op/add/float32", "pass", native=True)]
        >>> cases.append(conformance.CaseResult("op/mul/float32", "failed"))
        >>> conformance.Conformance(facts={}, results=cases).cases()
        Score(native=1, total=1, whole=2)
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
        """Return the cases of a kind that were not skipped.

        Args:
            kind: "driver", "runtime", "op", "module" or "optimizer".
        """
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
    seconds: float = 120.0,
    workers: int = 1,
    resume: bool = False,
    baseline: dict[str, str] | None = None,
    on_result: Callable[[CaseResult, int, int], object] = lambda result, done, of: None,
) -> Conformance:
    """Run the cases of a driver in processes of their own; what they gave is kept in the cache
    folder case by case. Ctrl-C ends the run early; returns what is known.

    Args:
        driver: its library, or its name.
        load: "MODULE:FUNCTION" of a package with kernels for the device: the function is called in
            each process, once the driver is loaded. The module has to be importable there
            (installed, or on PYTHONPATH).
        level: 0, the functions of the driver; 1, the runtime too; 2, operators, modules and
            optimizers too.
        pattern: cases whose names match, as in a shell.
        every: of these, each so-and-so-manieth.
        samples: of an operator, at most so many.
        seconds: what one case may take.
        workers: how many processes run at a time.
        resume: whether the cases of the last run on the same driver and torch are taken over.
        baseline: what `read_baseline` gives: outcomes of an earlier run, for regressions.
        on_result: called with each result, how many there are, and of how many.

    Raises:
        DriverError: the driver cannot be found or loaded.
        ModelError: there is no such level, no such module, or no case has such a name.
    """
    if level not in (0, 1, 2):
        raise ModelError(f"level {level}: expected 0, 1 or 2")
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
    journal = _Journal(library, samples, load)
    known = journal.results(resume)
    found.resumed = sum(case in known for case in wanted)
    run = _Run(found, journal, wanted, known, on_result)
    try:
        run.driver(library, pattern)
        run.others(lambda: Worker(str(library), samples, seconds, load), workers)
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

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from bringup import conformance
        >>> file = Path(tempfile.mkdtemp()) / "before.json"
        >>> row = '{"id": "op/add/float32", "outcome": "pass", "native": true}'
        >>> _ = file.write_text(f'{{"results": [{row}]}}')
        >>> conformance.read_baseline(file)
        {'op/add/float32': 'native'}
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
        if then in _ORDER and (now not in _ORDER or _ORDER.index(now) < _ORDER.index(then)):
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
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopped: threading.Event = field(default_factory=threading.Event)

    def driver(self, library: Path, pattern: str) -> None:
        """Run the checks of the driver's functions at once."""
        missing = [case for case in self._missing() if case.startswith("driver/")]
        if not missing:
            return
        only = [case.partition("/")[2] for case in missing]
        checked = devices.check_driver(library, only=only)
        results = {f"driver/{one.name}": one for one in checked.results}
        for case in missing:
            if case not in results:
                outcome = "failed" if checked.failure else "skipped"
                self._keep(CaseResult(case, outcome, reason=checked.failure or "not run"))
                continue
            one = results[case]
            outcome = {"pass": "pass", "fail": "failed"}.get(one.outcome, "skipped")
            native = outcome == "pass"
            self._keep(CaseResult(case, outcome, native, one.reason, 1, seconds=one.seconds))

    def others(self, make: Callable[[], Worker], workers: int) -> None:
        """Run everything else, in workers."""
        cases: queue.SimpleQueue[str] = queue.SimpleQueue()
        missing = [case for case in self._missing() if not case.startswith("driver/")]
        for case in missing:
            cases.put(case)
        made = [make() for _ in range(min(workers, len(missing)))]
        if made:
            self.found.facts |= {name: str(value) for name, value in made[0].facts().items()}
        errors: list[Exception] = []
        threads = [threading.Thread(target=self._work, args=(w, cases, errors)) for w in made]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            self.stopped.set()
            for worker in made:
                worker.close()
        if errors:
            raise errors[0]

    def _work(self, worker: Worker, cases: queue.SimpleQueue[str], errors: list[Exception]) -> None:
        while not self.stopped.is_set():
            try:
                self._keep(worker.run(cases.get_nowait()))
            except queue.Empty:
                return
            except Exception as error:
                if not self.stopped.is_set():  # then the process was ended under it
                    errors.append(error)
                return

    def _missing(self) -> list[str]:
        return [case for case in self.wanted if case not in self.known]

    def _keep(self, result: CaseResult) -> None:
        if self.stopped.is_set():
            return
        with self.lock:
            self.known[result.id] = result
            self.journal.add(result)
            done = sum(case in self.known for case in self.wanted)
        self.on_result(result, done, len(self.wanted))


class _Journal:
    """Keep results as lines of a file named by all that they depend on: the content of the driver
    and of the package with kernels, torch, the number of samples, and settings.
    """

    def __init__(self, library: Path, samples: int, load: str) -> None:
        import torch

        content = hashlib.sha256(library.read_bytes())
        chosen = {row["variable"]: row["now"] for row in settings.table() if row["now"]}
        chosen.pop("BRINGUP_CACHE_DIR", None)  # where this file is
        content.update(f"{torch.__version__} {__version__} {samples} {chosen} {load}".encode())
        if load:
            _add_package(content, load)
        self.path = settings.cache_dir() / "conformance" / f"{content.hexdigest()[:24]}.jsonl"

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
        """Keep a result."""
        with self.path.open("a") as file:
            file.write(json.dumps(dataclasses.asdict(result)) + "\n")


def _add_package(content: hashlib._Hash, load: str) -> None:
    """Add the files of a package to a digest: sources of kernels as well as Python."""
    module, colon, function = load.partition(":")
    if not (module and colon and function):
        raise ModelError(f"{load!r}: expected MODULE:FUNCTION, such as 'bringup_sim_ops:load'")
    package = module.partition(".")[0]
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise ModelError(f"{load}: there is no module {package!r}: install it, or set PYTHONPATH")
    folders = spec.submodule_search_locations
    files = [Path(spec.origin)] if spec.origin and not folders else []
    for folder in folders or []:
        files += [file for file in Path(folder).rglob("*") if file.suffix != ".pyc"]
    for file in sorted(files):
        if file.is_file():
            content.update(str(file).encode() + b"\0" + file.read_bytes())


def families(results: Iterable[CaseResult]) -> dict[str, list[CaseResult]]:
    """Return the cases of operators by family: the first parts of their names ("nn.functional",
    "linalg", "fft", "special", ...), "tensor" for those without one.

    Args:
        results: of cases.

    Examples:
        >>> from bringup import conformance
        >>> names = "op/add/float32", "op/linalg.inv/float32", "op/mul/float32"
        >>> found = conformance.families(conformance.CaseResult(name, "pass") for name in names)
        >>> {family: len(cases) for family, cases in found.items()}
        {'tensor': 2, 'linalg': 1}
    """
    found: dict[str, list[CaseResult]] = {}
    for one in results:
        if one.kind == "op":
            family = one.subject.rpartition(".")[0] or "tensor"
            found.setdefault(family, []).append(one)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))
