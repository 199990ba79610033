"""tools/next_torch.py: which version it takes, what it copies, and what it calls a failure."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.tool_module import tool_module

LISTED = "Available versions: 2.15.0, 2.14.10, 2.14.9, 2.14.11+cpu, 2.14.0rc1, 2.13.0+cpu, 1.13.1"


def test_the_newest_release_of_the_next_minor_is_taken() -> None:
    tool = tool_module("next_torch")
    assert tool.newest(LISTED, 14) == "2.14.10"
    assert tool.newest(LISTED, 16) is None


def test_the_copy_is_written_for_the_next_minor(tmp_path: Path) -> None:
    tool = tool_module("next_torch")
    now = tool.written_for((tool.ROOT / tool.PIN).read_text())
    tool.copy_sources(tmp_path / "source", now + 1)
    assert tool.written_for((tmp_path / "source" / tool.PIN).read_text()) == now + 1
    assert f"needs torch 2.{now + 1}" in (tmp_path / "source/tools/install_torch.py").read_text()
    assert (tmp_path / "source" / tool.SLICE[0]).is_dir()


def test_what_failed_is_listed(tmp_path: Path) -> None:
    tool = tool_module("next_torch")
    said = (
        "a.cpp:3:1: error: no member\\nfine\\nFAILED tests/a.py::b - x\\nFAILED tests/a.py::b - x"
    )
    program = f"print('{said}'); raise SystemExit(1)"
    found = tool.run(sys.executable, "-c", program, inside=tmp_path)
    assert found == ["a.cpp:3:1: error: no member", "FAILED tests/a.py::b - x"]
    assert tool.run(sys.executable, "-c", "print(1)", inside=tmp_path) is None


def test_where_there_is_no_such_version_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = tool_module("next_torch")
    monkeypatch.setattr(sys, "argv", ["next_torch.py", ""])
    monkeypatch.setattr(tool.subprocess, "check_output", lambda *a, **k: "torch (2.13.0)")
    assert tool.main() == 0
    assert "has no torch 2.14: there is nothing to try" in capsys.readouterr().out
