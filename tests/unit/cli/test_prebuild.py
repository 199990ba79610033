"""`bringup cache prebuild`: builds what a file of specs names; the exit code says how it went."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bringup import cli, jit

GOOD = jit.Spec(jit.Source(text='extern "C" int run() { return 0; }', name="good.cpp"))
BAD = jit.Spec(jit.Source(text="no", name="bad.cpp"))


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_prebuild_builds_what_the_file_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jit.save_specs(tmp_path / "specs.json", [GOOD])
    command = ["cache", "prebuild", str(tmp_path / "specs.json"), "--workers", "1"]
    assert cli.main(command) == 0
    assert capsys.readouterr().out == "1 built, 0 in the cache, 0 failed\n"
    assert cli.main([*command, "--target", "cpu", "--target", "sim"]) == 0
    assert capsys.readouterr().out == "1 built, 1 in the cache, 0 failed\n"
    with jit.frozen():
        jit.compile(GOOD.source)


def test_prebuild_exits_1_when_a_kernel_fails_and_builds_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jit.save_specs(tmp_path / "specs.json", [BAD, GOOD])
    assert cli.main(["cache", "prebuild", str(tmp_path / "specs.json"), "--json", "-"]) == 1
    outcomes = json.loads(capsys.readouterr().out)["outcomes"]
    assert [outcome["status"] for outcome in outcomes] == ["failed", "built"]
    assert "bad.cpp did not compile" in outcomes[0]["error"]
    assert outcomes[1]["kernel"] == "good.cpp for cpu"


def test_prebuild_of_a_file_of_something_else_exits_1_and_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.json").write_text("{}")
    assert cli.main(["cache", "prebuild", str(tmp_path / "other.json")]) == 1
    assert "other.json: expected a file of kernel specs" in capsys.readouterr().err
