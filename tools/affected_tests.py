"""Run the tests that a change touches, nearest first, for a limited time: `make check`.

    python tools/affected_tests.py [--since REVISION] [--seconds 90] [--list] [PYTEST ARGUMENTS]

A change is what differs from REVISION (where the branch left its upstream, or the last commit) in
the working tree. A test file is touched when it changed itself, or when a module that it imports
leads to a changed one; the fewer imports lie between, the earlier it runs. Files of native code
count as the modules that bind them. What the time did not reach is named: `make test` runs all.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
# What Python sees of native code: path -> modules.
_NATIVE = {
    "native/engine": ["bringup.ir._engine", "bringup.passes.engine"],
    "native/driver": ["bringup.devices"],
    "native/sim": ["bringup.devices"],
    "native/torch/devices": ["bringup.devices"],
    "native/torch/graphs": ["bringup.graphs"],
    "native/torch/ops": ["bringup.ops"],
    "native": ["bringup.jit", "bringup.ops"],
    "include": ["bringup.jit", "bringup.ops"],
}


def changed_files(since: str | None) -> list[str]:
    """Paths from the root of the repository, those that git does not know yet included."""
    if since and not _git("rev-parse", "--verify", since):
        sys.exit(f"git knows no revision '{since}'")
    since = since or _git("merge-base", "HEAD", "@{upstream}") or "HEAD"
    listed = (
        _git("diff", "--name-only", since) + "\n" + _git("ls-files", "-o", "--exclude-standard")
    )
    return sorted({line for line in listed.splitlines() if line})


def distances(changed: Iterable[str]) -> dict[str, int]:
    """Modules that a changed one reaches, with the number of imports between them."""
    graph = grimp.build_graph("bringup")
    near = {module for path in changed for module in _modules_of(path) if module in graph.modules}
    found: dict[str, int] = {}
    step = 0
    while near:
        found.update(dict.fromkeys(near, step))
        importers = (graph.find_modules_that_directly_import(module) for module in near)
        near = {module for modules in importers for module in modules} - found.keys()
        near.discard("bringup")  # the map of all packages, which loads none
        step += 1
    return found


def affected_tests(changed: list[str]) -> list[Path]:
    """Test files, nearest first; pages of the documentation are in the test that runs them."""
    reached = distances(changed)
    places = [ROOT / path for path in changed]
    ranks: dict[Path, int] = {}
    for test in sorted(ROOT.glob("tests/**/test_*.py")):
        steps = [reached[module] + 1 for module in _imported(test) if module in reached]
        if any(_serves(place, test) for place in places):
            steps.append(0)
        if steps:
            ranks[test] = min(steps)
    if any(path.suffix == ".md" for path in places):
        ranks[ROOT / "tests/docs/test_fenced_blocks.py"] = 0
    slow = ("tests/sweeps", "tests/integration")  # last of their rank
    return sorted(
        ranks,
        key=lambda test: (
            ranks[test],
            _name(test).startswith(slow),
            not _mirrors(test, changed),
            test,
        ),
    )


class TimeLimit:
    """A plugin of pytest: no test begins after `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds
        self._begun: set[str] = set()
        self.is_over = False

    @pytest.hookimpl
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Keeps the session, whose `shouldstop` ends it (that of workers too)."""
        self._session = session

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Looks at the clock whenever something of a test is over."""
        self._begun.add(report.nodeid.partition("::")[0])
        if report.when == "teardown" and time.monotonic() > self._end:
            self.is_over = True
            self._session.shouldstop = f"{self._seconds:.0f} seconds are over"

    def left(self, tests: list[Path]) -> list[str]:
        """Files of which no test has begun."""
        return [name for name in map(_name, tests) if name not in self._begun]


def main() -> int:
    """The exit status: 0 when no test that ran failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--since", help="a revision of git")
    parser.add_argument("--seconds", type=float, default=90, help="no test begins later")
    parser.add_argument("--list", action="store_true", help="print the files and run nothing")
    options, rest = parser.parse_known_args()
    tests = affected_tests(changed_files(options.since))
    if options.list or not tests:
        print("\n".join(map(_name, tests)) or "no test is touched by the change")
        return 0
    return run(TimeLimit(options.seconds), rest, tests)


def run(limit: TimeLimit, arguments: list[str], tests: list[Path]) -> int:
    """Runs these tests within the limit; the exit status of pytest, 0 when the time ended it."""
    order = ["--dist", "loadfile", "--no-loadscope-reorder"]
    status = pytest.main(["-q", *order, *arguments, *map(str, tests)], plugins=[limit])
    left = limit.left(tests)
    if limit.is_over and left:
        print(f"{len(left)} of {len(tests)} test files had no time, from {left[0]} on (--list)")
    return 0 if status == pytest.ExitCode.INTERRUPTED and limit.is_over else int(status)


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _modules_of(path: str) -> list[str]:
    if path.startswith("src/") and path.endswith(".py"):
        parts = Path(path).with_suffix("").parts[1:]
        return [".".join(parts[:-1] if parts[-1] == "__init__" else parts)]
    folders = (folder.as_posix() for folder in Path(path).parents)
    return next((_NATIVE[folder] for folder in folders if folder in _NATIVE), [])


def _imported(test: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(test.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _serves(changed: Path, test: Path) -> bool:
    """Whether it is the test, or what tests of its folder share."""
    if changed == test:
        return True
    helper = changed.suffix == ".py" and not changed.name.startswith("test_")
    return helper and changed.is_relative_to(ROOT / "tests") and changed.parent in test.parents


def _mirrors(test: Path, changed: list[str]) -> bool:
    """Whether its folder is that of a changed module's package."""
    parts = _name(test).split("/")[2:-1]
    modules = (module.split(".") for path in changed for module in _modules_of(path))
    return any(module[1 : 1 + len(parts)] == parts for module in modules if parts)


if __name__ == "__main__":
    sys.exit(main())
