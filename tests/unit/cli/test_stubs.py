"""`bringup stubs`: what a type checker makes of them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mypy import api

from bringup import cli, ops

USE = """
import torch
from ops_of_mine import scale, several

kept: torch.Tensor = scale(torch.ones(2), 2.0)
scale(torch.ones(2), factor="two")
first, second = several(torch.ones(2), sizes=[1], dtype=torch.int8)
several(torch.ones(2))
"""


SCHEMAS = (
    "scale(Tensor x, float factor=1.0) -> Tensor",
    "scale.Scalar(Scalar x, Generator? generator=None) -> float",
    "several(Tensor x, *, SymInt[] sizes, ScalarType? dtype=None) -> (Tensor, Tensor)",
    "keyword(Tensor x, int lambda) -> ()",
)


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Path]:
    """The stub of a few operators."""
    library = ops.Library("stubs_for_tests", "DEF")
    for schema in SCHEMAS:
        library.define(schema)
    assert cli.main(["stubs", "stubs_for_tests", "-o", str(tmp_path / "ops_of_mine.pyi")]) == 0
    yield tmp_path / "ops_of_mine.pyi"
    library._destroy()


def test_a_type_checker_finds_wrong_calls(
    written: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ast.parse(written.read_text())
    (tmp_path / "use.py").write_text(USE)
    monkeypatch.chdir(tmp_path)
    options = ["--strict", "--follow-imports=silent", "--no-incremental", "--no-site-packages"]
    said, wrong, _ = api.run([*options, "--ignore-missing-imports", "use.py"])
    assert not wrong
    lines = [line for line in said.splitlines() if ": error:" in line]
    assert [line.split(":")[1] for line in lines] == ["6", "8"], said


def test_stubs_say_types_and_overloads(written: Path) -> None:
    text = written.read_text()
    assert "def keyword(*args: Any, **kwargs: Any) -> None: ..." in text
    assert text.count("@overload\ndef scale(") == 2
    assert "generator: torch.Generator | None = ...) -> float: ..." in text
    assert "*, sizes: Sequence[int], dtype: torch.dtype | None = ..." in text


def test_what_is_not_there_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["stubs", "no_such_namespace"]) == 1
    assert "torch.ops.no_such_namespace has no operators" in capsys.readouterr().err
    assert cli.main(["stubs", "aten", "-o", str(tmp_path / "a.py")]) == 2


def test_the_module_of_a_stub_hands_names_on(written: Path) -> None:
    assert "torch.ops." in written.with_suffix(".py").read_text()


def test_operators_of_a_module_in_the_current_folder_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [one for one in sys.path if one not in ("", str(tmp_path))])
    line = "from bringup import ops\nlibrary = ops.Library('stubs_loaded', 'DEF')\n"
    Path("stubs_loaded_ops.py").write_text(f"{line}library.define('f(Tensor x) -> Tensor')\n")
    assert cli.main(["stubs", "stubs_loaded", "--load", "stubs_loaded_ops"]) == 0
    assert "def f(x: Tensor) -> Tensor: ..." in capsys.readouterr().out
    assert cli.main(["stubs", "stubs_loaded", "--load", "stubs_loaded_opz"]) == 1
    assert "there is no module 'stubs_loaded_opz'" in capsys.readouterr().err
