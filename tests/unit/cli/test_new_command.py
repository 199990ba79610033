"""`bringup new`: what is refused, and that nothing is left behind. That what it writes works is in
tests/integration/test_packages.py.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.forked_python import output_of

from bringup import cli
from bringup.cli import _new_command


@pytest.mark.parametrize("kind", ["kernel", "pass", "driver"])
def test_all_files_of_the_package_are_written_without_placeholders(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["new", kind, "my_first", "--into", str(tmp_path), "--json", "-"]) == 0
    said = json.loads(capsys.readouterr().out)
    package = tmp_path / "my_first"
    assert said["package"] == str(package)
    written = [path for path in package.rglob("*") if path.is_file()]
    assert sorted(said["files"]) == sorted(p.relative_to(package).as_posix() for p in written)
    expected = ["README.md", "pyproject.toml", "src/my_first/__init__.py"]
    expected += ["tests/test_my_first.py"]
    expected += (
        ["driver.c", "tests/test_contract.py"]
        if kind == "driver"
        else ["benchmarks/bench_my_first.py"]
    )
    assert set(expected) <= set(said["files"])
    for path in written:
        assert "@name@" not in path.read_text()
        assert "@Name@" not in path.read_text()
    pyproject = (package / "pyproject.toml").read_text()
    group = {"kernel": "ops", "pass": "passes", "driver": "drivers"}[kind]
    assert f'[project.entry-points."bringup.{group}"]\nmy_first = "my_first"' in pyproject
    assert 'name = "my-first"' in pyproject


def test_what_is_there_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    assert cli.main(["new", "kernel", "mine", "--into", str(tmp_path)]) == 1
    assert "is there already, and nothing is overwritten" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["mine", "notes.txt"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Gelu", "expected lower case letters"),
        ("my-gelu", "expected lower case letters"),
        ("../up", "expected lower case letters"),
        ("_gelu", "expected lower case letters"),
        ("lambda", "is a word of Python"),
        ("torch", "is the name of another package"),
        ("json", "is the name of another package"),
        ("setuptools", "is the name of another package"),
        ("passes", "is a name that the package's own files use"),
        ("x", "is a name that the package's own files use"),
    ],
)
def test_bad_names_exit_2_with_the_reason(
    name: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["new", "pass", name, "--into", str(tmp_path)]) == 2
    assert reason in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_exits_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["new", "kernel", "mine", "--into", str(tmp_path / "no")]) == 2
    assert "is no folder" in capsys.readouterr().err


def test_a_failure_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled = _new_command.filled

    def fails(text: str, name: str) -> str:
        if "pyproject" in text:
            raise OSError("no space left")
        return filled(text, name)

    monkeypatch.setattr(_new_command, "filled", fails)
    assert cli.main(["new", "kernel", "mine", "--into", str(tmp_path)]) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cuda_like", "torch cannot load tensors of a device whose name starts with"),
        ("softmax", "torch.softmax already exists"),
        ("vulkan", "torch has a device of that name"),
    ],
)
def test_a_name_that_no_device_can_have_exits_2_for_a_driver(
    name: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["new", "driver", name, "--into", str(tmp_path)]) == 2
    assert reason in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


def test_a_driver_is_less_than_300_lines_of_c(tmp_path: Path) -> None:
    assert cli.main(["new", "driver", "mine", "--into", str(tmp_path)]) == 0
    assert len((tmp_path / "mine" / "driver.c").read_text().splitlines()) < 300


HUB = """
import importlib.util, sys
import torch
where = sys.argv[1]
spec = importlib.util.spec_from_file_location("name_of_the_loader", f"{where}/__init__.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.hub_kernel(torch.ones(2), 3.0).tolist())
"""


def test_a_kernel_is_exported_for_the_hub_with_its_binaries(tmp_path: Path) -> None:
    assert cli.main(["new", "kernel", "hub_kernel", "--into", str(tmp_path), "--hub"]) == 0
    path = {"PYTHONPATH": str(tmp_path / "hub_kernel" / "src")}
    program = "import runpy; runpy.run_module('hub_kernel.export_hub', run_name='__main__')"
    out = output_of(program, str(tmp_path), **path).splitlines()[-1]
    assert re.fullmatch(r"torch\d+-cxx11-cpu-\w+-linux", Path(out).name)
    described = json.loads((Path(out) / "metadata.json").read_text())
    assert (described["name"], described["backend"]) == ("hub-kernel", {"type": "cpu"})
    elsewhere = {"PATH": "/nowhere", "BRINGUP_CACHE_DIR": str(tmp_path / "cache")}
    assert output_of(HUB, out, **elsewhere) == "[3.0, 3.0]"
