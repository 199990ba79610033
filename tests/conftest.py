"""What every test shares: a kernel cache of its own, the order of tests, and what a run tells."""

from __future__ import annotations

import gc
import os
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sweeps.support import told

# Where a session of pytest finds the kernels that one before it, or around it, compiled.
SHARED_CACHE = "TEST_KERNEL_CACHE"
# The options in place of `-march=native` that a session's kernels are built with.
MACHINE = "TEST_KERNEL_MACHINE"

# Where the seconds that each file took are kept in pytest's cache.
SECONDS = "bringup/seconds"
TOLD_FROM_S = 20

# How many objects a file may leave before collections of garbage leave them out, too.
FREEZE_FROM = 100_000

_sweeps: dict[str, Counter[str]] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--slow-first`, for a run of everything."""
    words = "files that took longest first, so that no worker is left with one at the end"
    parser.addoption("--slow-first", action="store_true", help=words)
    parser.addoption("--shuffle", metavar="SEED", help="files and their tests in a random order")


def pytest_configure() -> None:
    """Keep the tests' rewritten assertions for the next run, which makes less of a collection than
    half; build kernels for the machine that `MACHINE` describes.
    """
    sys.dont_write_bytecode = False
    if described := os.environ.get(MACHINE):
        from tests.unit.kernels.machines import build_for

        build_for(described)


def pytest_report_header() -> str:
    """Which part of the sweeps runs."""
    return told()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests as `--slow-first` and the shuffle ask for it."""
    if config.getoption("shuffle"):
        _shuffle(items, config.getoption("shuffle"))
    if config.getoption("slow_first"):
        slow = {_file(item.nodeid) for item in items if item.get_closest_marker("slow")}
        cache = getattr(config, "cache", None)  # there is none with -p no:cacheprovider
        took: dict[str, float] = cache.get(SECONDS, {}) if cache else {}
        ten = dict.fromkeys(slow, 10.0)
        items.sort(key=lambda item: -(ten | took).get(_file(item.nodeid), 0.0))


def pytest_collection_finish() -> None:
    """Write no bytecode of what tests write, where PYTHONDONTWRITEBYTECODE says so. Leave what
    imports made out of later collections of garbage: each would take 0.3 s.
    """
    sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)
    _freeze()


def _freeze() -> None:
    gc.collect()
    gc.freeze()


def _shuffle(items: list[pytest.Item], seed: str) -> None:
    """Shuffle files, and the tests of each: they share what is made once for a file."""
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(_file(item.nodeid), []).append(item)
    draw = random.Random(seed)
    shuffled = list(files.values())
    draw.shuffle(shuffled)
    for tests in shuffled:
        draw.shuffle(tests)
    items[:] = [item for tests in shuffled for item in tests]


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """A file's passes would run in whatever another file compiles in this process, and what it
    compiled counts where dynamo limits how often code is compiled.
    """
    yield
    if passes := sys.modules.get("bringup.passes"):
        passes.clear_registered_passes()
    if dynamo := sys.modules.get("torch._dynamo"):
        dynamo.reset()
    if len(gc.get_objects(generation=2)) > FREEZE_FROM:
        _freeze()


@pytest.fixture(autouse=True)
def _dispatch_is_as_before() -> Iterator[None]:
    """Refuse a test that leaves a dispatch key switched for the thread: every test after it would
    run other kernels.
    """
    before = _dispatch_state()
    yield
    assert before in (None, _dispatch_state())


def _dispatch_state() -> tuple[object, ...] | None:
    """Return what decides which kernels this thread's operators run, None before torch's import."""
    if (torch := sys.modules.get("torch")) is None:
        return None
    return (
        str(torch._C._dispatch_tls_local_include_set()),
        str(torch._C._dispatch_tls_local_exclude_set()),
        torch._C._functorch.maybe_current_level(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
    )


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The session's kernel cache; its workers, and processes that a test starts, share it."""
    base = tmp_path_factory.getbasetemp()
    session = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = Path(os.environ.get(SHARED_CACHE, session / "kernel-cache"))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(SHARED_CACHE, str(folder))
        environment.setenv("BRINGUP_CACHE_DIR", str(folder))
        environment.setenv("BRINGUP_JIT_AUTOTUNE", "0")
        environment.setenv("BRINGUP_JIT_PROGRESS", "0")  # a slow machine would say more on stderr
        yield folder


@pytest.fixture
def settled() -> None:
    """Collect what former tests left: it would give memory back while a test counts it."""
    gc.collect()


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


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _folder(file: str) -> str:
    """tests/docs/test_pages.py: tests/docs; tests/unit/jit/store/test_cache.py: tests/unit/jit."""
    parents = file.split("/")[:-1]
    return "/".join(parents[: 3 if parents[1:2] == ["unit"] else 2])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print where the time went, and the sweeps' table."""
    took: dict[str, float] = defaultdict(float)
    for report in (one for some in terminalreporter.stats.values() for one in some):
        if isinstance(report, pytest.TestReport):
            took[_file(report.nodeid)] += report.duration
    if sum(took.values()) > TOLD_FROM_S:
        _tell_seconds(terminalreporter, took)
    if _sweeps:
        _tell_sweeps(terminalreporter)


def _tell_seconds(terminalreporter: pytest.TerminalReporter, took: dict[str, float]) -> None:
    """Print the seconds of each folder, and keep those of each file for the next run."""
    if cache := getattr(terminalreporter.config, "cache", None):  # absent without its plugin
        cache.set(SECONDS, cache.get(SECONDS, {}) | {k: round(v, 1) for k, v in took.items()})
    folders: dict[str, float] = defaultdict(float)
    for file, seconds in took.items():
        folders[_folder(file)] += seconds
    terminalreporter.section("seconds of all workers")
    for folder, seconds in sorted(folders.items(), key=lambda row: -row[1]):
        terminalreporter.write_line(f"{seconds:8.0f}  {folder}")


def _tell_sweeps(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("sweeps")
    for nodeid, counts in sorted(_sweeps.items()):
        told = ", ".join(f"{value:,} {name}" for name, value in counts.items())
        terminalreporter.write_line(f"{nodeid}: {told}")
