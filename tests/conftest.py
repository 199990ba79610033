"""What every test shares: a kernel cache of its own, and the report of the sweeps."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sweeps.support import told

# Where a session of pytest within this one finds the kernels that this one compiled.
SHARED_CACHE = "TEST_KERNEL_CACHE"
# The options in place of `-march=native` that a session's kernels are built with.
MACHINE = "TEST_KERNEL_MACHINE"

_sweeps: dict[str, Counter[str]] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--slow-first`, for a run of everything."""
    words = "files with slow tests first, so that no worker is left with one at the end"
    parser.addoption("--slow-first", action="store_true", help=words)


def pytest_configure() -> None:
    """Builds kernels for the machine that `MACHINE` describes."""
    if described := os.environ.get(MACHINE):
        from tests.unit.kernels.machines import build_for

        build_for(described)


def pytest_report_header() -> str:
    """Which part of the sweeps runs."""
    return told()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The order of files, where `--slow-first` asks for it."""
    if config.getoption("slow_first"):
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="module", autouse=True)
def _no_passes_are_left() -> Iterator[None]:
    """A file's passes would run in whatever another file compiles in this process."""
    yield
    passes = sys.modules.get("bringup.passes")
    if passes is not None:
        passes.clear_registered_passes()


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The session's kernel cache; its workers, and processes that a test starts, share it."""
    base = tmp_path_factory.getbasetemp()
    session = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = Path(os.environ.get(SHARED_CACHE, session / "kernel-cache"))
    folder.mkdir(mode=0o700, exist_ok=True)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(SHARED_CACHE, str(folder))
        environment.setenv("BRINGUP_CACHE_DIR", str(folder))
        environment.setenv("BRINGUP_JIT_AUTOTUNE", "0")
        environment.setenv("BRINGUP_JIT_PROGRESS", "0")  # a slow machine would say more on stderr
        yield folder


@pytest.fixture
def sweep_counts(request: pytest.FixtureRequest) -> Iterator[Counter[str]]:
    """What a sweep counts (`counts["replays"] += 1`); printed at the end of the session."""
    counts: Counter[str] = Counter()
    yield counts
    request.node.user_properties.append(("sweep", dict(counts)))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collects what sweeps counted; with xdist this runs where the summary is printed."""
    if report.when != "teardown":
        return
    for name, counts in report.user_properties:
        if name == "sweep" and isinstance(counts, dict):
            _sweeps.setdefault(report.nodeid.split("[")[0], Counter()).update(counts)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The sweeps' table."""
    if not _sweeps:
        return
    terminalreporter.section("sweeps")
    for nodeid, counts in sorted(_sweeps.items()):
        told = ", ".join(f"{value:,} {name}" for name, value in counts.items())
        terminalreporter.write_line(f"{nodeid}: {told}")
