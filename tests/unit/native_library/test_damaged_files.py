"""`bringup doctor` on a package whose native files are not those that were built."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.installed_package import link_other_packages, put_package

from bringup._native import _manifest


@pytest.fixture
def native(tmp_path: Path) -> Path:
    """The folder of the native files, in a package of its own."""
    link_other_packages(tmp_path / "site")
    return put_package(tmp_path / "site").parent


def run_doctor(native: Path) -> subprocess.CompletedProcess[str]:
    """`bringup doctor` of that package alone."""
    program = "import sys; from bringup.cli import main; sys.exit(main())"
    site, home = map(str, native.parents[1:3])
    return subprocess.run(
        [sys.executable, "-S", "-P", "-c", program, "doctor", "--json", "doctor.json"],
        env={"PYTHONPATH": site, "HOME": home, "PATH": "/usr/bin:/bin"},
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )


def findings(native: Path) -> list[dict[str, str]]:
    """What it says of the native files."""
    done = run_doctor(native)
    out = native.parents[2] / "doctor.json"
    assert out.exists(), done.stdout + done.stderr
    found: list[dict[str, str]] = json.loads(out.read_text())["findings"]
    return [finding for finding in found if finding["subject"] == "native files"]


def test_files_as_they_were_built_are_healthy(native: Path) -> None:
    (finding,) = findings(native)
    assert (finding["health"], finding["detail"]) == ("ok", f"{native}: as they were built")


def test_each_file_that_was_altered_or_is_gone_is_named(native: Path) -> None:
    with (native / "libbringup_sim.so").open("ab") as file:
        file.write(b"!")  # the loader does not notice
    (native / "bringupc").unlink()
    (gone, altered) = findings(native)
    assert {altered["health"], gone["health"]} == {"missing"}
    assert altered["detail"].startswith(f"{native}/libbringup_sim.so is damaged: its SHA-256 is")
    assert gone["detail"] == f"{native}/bringupc cannot be read (No such file or directory)"
    assert altered["fix"].startswith("pip install")


@pytest.mark.parametrize("size", [10_000, 10, 0])
def test_a_core_that_was_cut_off_is_named_instead_of_a_crash(native: Path, size: int) -> None:
    (core,) = native.glob("_core*.so")
    core.write_bytes(core.read_bytes()[:size])
    done = run_doctor(native)
    assert done.returncode == 1
    assert done.stderr.startswith("bringup doctor: bringup's native core cannot be loaded: ")
    assert f"{core} is damaged: its SHA-256 is" in done.stderr
    assert "reinstall" in done.stderr


def test_a_manifest_that_is_cut_off_is_named(native: Path) -> None:
    manifest = native / _manifest.MANIFEST
    manifest.write_text(manifest.read_text()[:100])
    done = run_doctor(native)
    assert done.returncode == 1
    assert f"{manifest} cannot be read: " in done.stderr


def test_a_library_that_cannot_be_loaded_says_which_file_is_damaged(native: Path) -> None:
    engine = native / "libbringup_engine.so"
    engine.write_bytes(b"#!/bin/sh")
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", "import bringup.ir"],
        env={"PYTHONPATH": str(native.parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"{engine} is damaged: its SHA-256 is" in done.stderr.splitlines()[-1]


def test_without_a_manifest_nothing_is_compared_and_that_is_said(native: Path) -> None:
    (native / _manifest.MANIFEST).unlink()
    (finding,) = findings(native)
    assert finding["detail"] == f"{native}: not compared: there is no manifest"


def test_a_package_for_another_python_says_so(native: Path) -> None:
    (core,) = native.glob("_core*.so")
    other = native / core.name.replace(_manifest.interpreter().python[2:], "399")
    core.rename(other)
    done = run_doctor(native)
    assert (done.returncode, f"{core} cannot be read (No such file" in done.stderr) == (1, True)
    record = json.loads((native / _manifest.MANIFEST).read_text())
    (artifact,) = (found for found in record["artifacts"] if found["file"] == core.name)
    artifact.update(file=other.name, python="cp399", abi="cp399")
    (native / _manifest.MANIFEST).write_text(json.dumps(record))
    here = _manifest.interpreter().abi
    assert f"{other} was built for Python cp399, this is {here}" in run_doctor(native).stderr
    (native / _manifest.MANIFEST).unlink()
    assert f"native core cannot be loaded: {native} has none: " in run_doctor(native).stderr


def test_a_package_in_an_archive_says_that_it_has_to_be_installed(native: Path) -> None:
    """A wheel on the path of Python, as some tools put one there."""
    site = native.parents[1]
    archive = shutil.make_archive(str(site.parent / "whole"), "zip", site, "bringup")
    shutil.rmtree(site / "bringup")
    program = "import sys; from bringup.cli import main; sys.exit(main(['doctor']))"
    for code in (program, "import bringup.ir"):
        done = subprocess.run(
            [sys.executable, "-S", "-P", "-c", code],
            env={"PYTHONPATH": f"{archive}:{site}", "HOME": str(site.parent)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        last = done.stderr.splitlines()[-1]
        assert f"{archive}/bringup/_native is in an archive, from which nothing native is" in last
