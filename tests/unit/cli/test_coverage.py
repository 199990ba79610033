"""`bringup coverage`: what it prints, writes and ends with."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import bringup_sim_ops
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
    assert cli.main([*command, "--no-operators"]) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert shown.startswith("0% of the FLOPs and 0% of the operators native\nThe simulator has no ")
    assert "\naddmm " in shown
    found = json.loads(file.read_text())
    assert found["needs"][0]["flops"] == 2 * 4 * 8 * 16
    assert found["shares"]["fallback"]["flops"] == 1.0
    assert "0% of the FLOPs" in page.read_text()
    assert "gelu_backward" in page.read_text()
    assert f"bringup {' '.join(command)} --no-operators" in page.read_text()


def test_the_simulators_operators_are_loaded_and_taken_out_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "found.json"
    assert cli.main(["coverage", "covered_model:make", "--json", str(file)]) == ExitCode.DONE
    assert json.loads(file.read_text())["shares"]["native"]["flops"] == 1.0
    operators = len(bringup_sim_ops.OPERATORS)
    assert f"no kernels of its own; bringup_sim_ops has {operators}." in capsys.readouterr().out
    x = torch.ones(2, device="npu")
    with devices.fallback_policy("forbid"), pytest.raises(NotImplementedError):
        torch.mul(x, x)


def test_operators_that_the_device_has_already_leave_the_package_out_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (gelu,) = [one for one in bringup_sim_ops.OPERATORS if one.name.startswith("aten::gelu")][:1]
    own = devices.kernel(gelu.name, expression=gelu.expression)
    try:
        assert cli.main(["coverage", "covered_model:make"]) == ExitCode.DONE
    finally:
        own.close()
    shown = capsys.readouterr().out
    assert "left out, others are there: devices.kernel('aten::gelu') takes the place" in shown
    assert re.search(r"^gelu +forward .* native", shown, re.MULTILINE)
    assert re.search(r"^addmm +forward .* fallback", shown, re.MULTILINE)


def test_what_is_impossible_has_a_reason_and_an_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with devices.fallback_policy("allow", {"aten::gelu": "forbid"}):
        assert (
            cli.main(["coverage", "covered_model:make", "--rows", "1", "--no-operators"])
            == ExitCode.FAILED
        )
    shown = " ".join(capsys.readouterr().out.split())
    assert "aten::gelu: NotImplementedError" in shown
    assert "more: --rows, --json" in shown


def test_a_step_of_the_optimizer_is_listed_where_it_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    command = ["coverage", "covered_model:make", "--optimizer", "SGD", "--no-operators"]
    command += ["--json", str(file)]
    assert cli.main(command) == ExitCode.DONE
    assert "optimizer" in json.loads(file.read_text())["phases"]
