"""What every test shares: a kernel cache of its own, and the report of the sweeps."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

_sweeps: dict[str, Counter[str]] = {}


@pytest.fixture(scope="module", autouse=True)
def _no_passes_are_left() -> Iterator[None]:
    """A file's passes would run in whatever another file compiles in this process."""
    yield
    passes = sys.modules.get("bringup.passes")
    if passes is not None:
        passes.clear_registered_passes()


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The session's kernel cache; processes that a test starts inherit it."""
    folder = tmp_path_factory.mktemp("kernel-cache")
    with pytest.MonkeyPatch.context() as environment:
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
