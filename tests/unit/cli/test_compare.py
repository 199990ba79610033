"""`bringup compare`: what it prints, writes and ends with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bringup import cli, devices
from bringup.cli._exit_codes import ExitCode

MODEL = """
import torch
def make():
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Softmax(-1)
    return torch.nn.Sequential(*layers), torch.randn(4, 8)
def in_evaluation():
    model, x = make()
    return model.eval().requires_grad_(False), x
"""


@pytest.fixture(autouse=True)
def _model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices.load_driver("sim")
    (tmp_path / "compared_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def written(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_a_right_model_ends_with_0(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    command = ["compare", "compared_model:make", "--no-operators", "--json", str(file)]
    assert cli.main(command) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert "npu against cpu:" in shown
    assert "No operator is wrong on equal inputs." in shown
    assert "equal" in shown
    assert "near" not in shown
    found = written(file)
    assert found["agrees"]
    assert found["differences"] == []
    assert found["compared"] > 4
    assert {"output 0", "gradient of 0.weight"} <= {r["name"] for r in found["results"]}


def test_the_wrong_operator_is_named_and_the_exit_code_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    library = torch.library.Library("aten", "IMPL")
    library.impl(
        "gelu",
        lambda x, approximate="none": (torch.ops.aten.gelu(x.cpu()) * 1.02).to(x.device),
        "PrivateUse1",
    )
    page = tmp_path / "page.html"
    arguments = ["compare", "compared_model:make", "--html", str(page), "--json", "-"]
    try:
        assert cli.main(arguments) == ExitCode.FAILED
    finally:
        library._destroy()
    printed = capsys.readouterr()
    (difference,) = json.loads(printed.out)["differences"]
    assert (difference["module"], difference["operator"]) == ("1", "aten::gelu")
    assert difference["arguments"] == "float32[4, 8]"
    assert difference["error"] == pytest.approx(0.02, rel=1e-3)
    assert "WRONG aten::gelu in the forward of 1" in printed.err
    assert "WRONG aten::gelu in the forward of 1" in page.read_text()


def test_a_model_without_gradients_is_compared_forward(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    command = ["compare", "compared_model:in_evaluation", "--json", str(file)]
    assert cli.main(command) == ExitCode.DONE
    assert not written(file)["backward"]


def test_a_captured_model_is_compared_with_eager(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    command = ["compare", "compared_model:make", "--a", "cpu", "--b", "captured", "--json"]
    assert cli.main([*command, str(file)]) == ExitCode.DONE
    assert written(file)["level"] == "module"


def test_a_level_that_is_none_is_a_usage_error() -> None:
    command = ["compare", "compared_model:make", "--level", "layer"]
    assert cli.main(command) == ExitCode.USAGE


def test_html_does_not_go_to_standard_output() -> None:
    assert cli.main(["compare", "compared_model:make", "--html", "-"]) == ExitCode.USAGE
