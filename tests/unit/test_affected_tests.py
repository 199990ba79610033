"""`make check`: which tests a change touches, and that the time for them ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.tool_module import tool_module

TOOL = Path(__file__).parents[2] / "tools" / "affected_tests.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return tool_module("affected_tests")


def touched(tool: ModuleType, *changed: str) -> list[str]:
    return [
        path.relative_to(TOOL.parents[1]).as_posix() for path in tool.affected_tests([*changed])
    ]


def test_distance_counts_imports(tool: ModuleType) -> None:
    found = tool.distances(["src/bringup/graphs/_copies.py"])
    assert found["bringup.graphs._copies"] == 0
    assert found["bringup.graphs._inputs"] == 1
    assert found["bringup.graphs"] > 1
    assert "bringup.jit" not in found


def test_tests_of_the_changed_package_come_before_those_of_its_users(tool: ModuleType) -> None:
    tests = touched(tool, "src/bringup/graphs/_copies.py")
    assert tests.index("tests/unit/graphs/test_run.py") < tests.index("tests/unit/cli/test_try.py")
    assert "tests/unit/jit/store/test_prune.py" not in tests


def test_native_code_counts_as_the_modules_that_bind_it(tool: ModuleType) -> None:
    assert touched(tool, "native/torch/graphs/turns.cpp")[0].startswith("tests/unit/graphs/")
    assert touched(tool, "native/sim/graph.cpp")[0].startswith("tests/unit/devices/")


def test_changed_test_comes_first_and_a_helper_brings_its_folder(tool: ModuleType) -> None:
    test = "tests/unit/ir/test_builder.py"
    assert touched(tool, test) == [test]
    tests = touched(tool, "tests/unit/graphs/conftest.py")
    assert tests
    assert all(name.startswith("tests/unit/graphs/") for name in tests)


def test_page_of_the_documentation_brings_the_test_that_runs_it(tool: ModuleType) -> None:
    assert touched(tool, "docs/graphs/capture.md") == ["tests/docs/test_fenced_blocks.py"]


def test_files_that_git_does_not_know_are_changes(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *command], cwd=tmp_path, check=True)
    (tmp_path / "new.py").touch()
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    assert tool.changed_files(None) == ["new.py"]
    with pytest.raises(SystemExit, match="no revision 'nonsense'"):
        tool.changed_files("nonsense")


def test_no_test_begins_when_the_time_is_over(tmp_path: Path) -> None:
    (tmp_path / "test_first.py").write_text("def test_one(): pass\ndef test_two(): pass\n")
    (tmp_path / "test_later.py").write_text("def test_three(): raise AssertionError\n")
    program = f"""
import sys, pytest
sys.path.insert(0, {str(TOOL.parent)!r})
import affected_tests
affected_tests.ROOT = __import__("pathlib").Path({str(tmp_path)!r})
sys.exit(affected_tests.run(affected_tests.TimeLimit(0), [], [
    affected_tests.ROOT / "test_first.py", affected_tests.ROOT / "test_later.py"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert "1 of 2 test files had no time, from test_later.py on" in done.stdout
