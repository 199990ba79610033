"""Cases as jobs of an executor: in threads here, or in any worker of another machine.

A process that runs jobs keeps the workers that it made for the next one, and ends those that are
idle. What has another driver, torch or package of kernels refuses: its results would be others.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bringup import devices, settings
from bringup._version import __version__
from bringup.conformance._cases import CaseResult
from bringup.conformance._worker_pool import Worker
from bringup.errors import DriverError, ModelError

_IDLE_SECONDS = 30.0


@dataclass(frozen=True)
class Setup:
    """What the workers of a run begin with, wherever they are; `settings` change results."""

    driver: str
    samples: int
    seconds: float
    load: str
    settings: tuple[tuple[str, str], ...]
    identity: str

    def worker(self) -> Worker:
        """Return a worker of this machine. Raises `DriverError` where its identity is another."""
        ours = {row["variable"] for row in settings.table()} - {"BRINGUP_CACHE_DIR"}
        environment = {name: value for name, value in os.environ.items() if name not in ours}
        environment |= dict(self.settings)
        return Worker(str(self.library()), self.samples, self.seconds, self.load, environment)

    def library(self) -> Path:
        library = devices.driver_library(self.driver)
        if identity(library, self.load) != self.identity:
            raise DriverError(
                f"worker {os.uname().nodename}:{os.getpid()} has another driver {library}, torch, "
                "bringup or package of kernels than the machine that wants the results"
            )
        return library


@dataclass
class _Workers:
    """The workers of this process: of each setup all, and those without a case."""

    made: defaultdict[Setup, list[Worker]] = field(default_factory=lambda: defaultdict(list))
    idle: dict[Worker, threading.Timer] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, setup: Setup) -> Worker:
        with self.lock:
            for worker in self.made[setup]:
                if worker in self.idle:
                    self.idle.pop(worker).cancel()
                    return worker
            worker = setup.worker()
            self.made[setup].append(worker)
            return worker

    def give_back(self, setup: Setup, worker: Worker) -> None:
        timer = threading.Timer(_IDLE_SECONDS, self.end, (setup, worker))
        timer.daemon = True
        with self.lock:
            if worker in self.made[setup]:
                self.idle[worker] = timer
                timer.start()
                return
        worker.close()  # the run has ended

    def end(self, setup: Setup, only: Worker | None = None) -> None:
        """End a worker if it is idle, or all of a setup, busy or not."""
        with self.lock:
            ended = [w for w in self.made[setup] if only is None or (w is only and w in self.idle)]
            for worker in ended:
                self.made[setup].remove(worker)
                if worker in self.idle:
                    self.idle.pop(worker).cancel()
        for worker in ended:
            worker.close()


_workers = _Workers()
end_workers = _workers.end


def run_job(setup: Setup, cases: tuple[str, ...]) -> tuple[list[CaseResult], dict[str, Any]]:
    """Run cases one by one; return results and the device's facts. Raises `DriverError`."""
    if cases[0].startswith("driver/"):
        return _driver_results(setup, cases), {}
    worker = _workers.take(setup)
    try:
        facts = worker.facts()
        return [worker.run(case) for case in cases], facts
    finally:
        _workers.give_back(setup, worker)


def _driver_results(setup: Setup, cases: tuple[str, ...]) -> list[CaseResult]:
    only = [case.partition("/")[2] for case in cases]
    checked = devices.check_driver(setup.library(), only=only)
    results = {f"driver/{one.name}": one for one in checked.results}
    found = []
    for case in cases:
        if case not in results:
            outcome = "failed" if checked.failure else "skipped"
            found.append(CaseResult(case, outcome, reason=checked.failure or "not run"))
            continue
        one = results[case]
        outcome = {"pass": "pass", "fail": "failed"}.get(one.outcome, "skipped")
        native = outcome == "pass"
        found.append(CaseResult(case, outcome, native, one.reason, 1, seconds=one.seconds))
    return found


def chosen_settings() -> tuple[tuple[str, str], ...]:
    """Return the variables that results depend on: all but where the cache is."""
    rows = ((row["variable"], row["now"]) for row in settings.table())
    return tuple((name, now) for name, now in rows if now and name != "BRINGUP_CACHE_DIR")


def identity(library: Path, load: str) -> str:
    """Return a digest of driver, torch, bringup, kernels. Raises `ModelError` for no module."""
    import torch

    content = hashlib.sha256(library.read_bytes())
    content.update(f"{torch.__version__} {__version__} {load}".encode())
    if load:
        _add_package(content, load)
    return content.hexdigest()


def _add_package(content: hashlib._Hash, load: str) -> None:
    """Add the files of a package to a digest: sources of kernels as well as Python."""
    module, colon, function = load.partition(":")
    if not (module and colon and function):
        raise ModelError(f"{load!r}: expected MODULE:FUNCTION, such as 'bringup_sim_ops:load'")
    package = module.partition(".")[0]
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise ModelError(f"{load}: there is no module {package!r}: install it, or set PYTHONPATH")
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    alone = Path(spec.origin) if spec.origin and not folders else None
    files = {alone.name: alone} if alone else {}  # by names that other machines have too
    for folder in folders:
        files |= {str(file.relative_to(folder)): file for file in folder.rglob("*")}
    for name, file in sorted(files.items()):
        if file.is_file() and file.suffix != ".pyc":
            content.update(name.encode() + b"\0" + file.read_bytes())
