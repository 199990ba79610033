"""`bringup coverage`: what it prints, writes and ends with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bringup import cli, devices
from bringup.cli._exit_codes import ExitCode

MODEL = """
import torch
def make():
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU()), torch.randn(4, 8)
"""


@pytest.fixture(autouse=True)
def _model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices.load_driver("sim")
    (tmp_path / "covered_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def test_the_list_is_printed_and_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file, page = tmp_path / "found.json", tmp_path / "page.html"
    command = ["coverage", "covered_model:make", "--json", str(file), "--html", str(page)]
    assert cli.main(command) == ExitCode.DONE
    assert "aten::addmm" in capsys.readouterr().out
    found = json.loads(file.read_text())
    assert found["needs"][0]["flops"] == 2 * 4 * 8 * 16
    assert found["shares"]["fallback"]["flops"] == 1.0
    assert "0% of the FLOPs" in page.read_text()
    assert "aten::gelu_backward" in page.read_text()


def test_what_is_impossible_has_a_reason_and_an_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with devices.fallback_policy("allow", {"aten::gelu": "forbid"}):
        assert cli.main(["coverage", "covered_model:make", "--rows", "1"]) == ExitCode.FAILED
    shown = " ".join(capsys.readouterr().out.split())
    assert "aten::gelu: NotImplementedError" in shown
    assert "more: --rows, --json" in shown


def test_a_step_of_the_optimizer_is_listed_where_it_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    command = ["coverage", "covered_model:make", "--optimizer", "SGD", "--json", str(file)]
    assert cli.main(command) == ExitCode.DONE
    assert "optimizer" in json.loads(file.read_text())["phases"]
