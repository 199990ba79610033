"""What the build takes from the torch of the interpreter: `cmake/torch_facts.cmake`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = """
include({root}/cmake/torch_facts.cmake)
message(STATUS "key: ${{torch_key}}, version: ${{torch_version}}")
"""


def build_facts(folder: Path, version: str) -> str:
    """What CMake says with an interpreter that has this torch; none when ""."""
    python = folder / "python"
    key = f"torch-{version.rpartition('.')[0]}-cp311"
    said = f"printf '/site/torch\\n1\\n{version}\\n{key}\\n'" if version else "exit 1"
    python.write_text(f"#!/bin/sh\n{said}\n")
    python.chmod(0o755)
    (folder / "script.cmake").write_text(SCRIPT.format(root=ROOT))
    argv = ["cmake", f"-DPython_EXECUTABLE={python}", "-P", str(folder / "script.cmake")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == ("CMake Error" not in done.stderr)
    return done.stdout + " ".join(done.stderr.split())


@pytest.mark.parametrize("version", ["2.13.0", "2.13.1"])
def test_the_torch_that_the_sources_are_written_for_is_built_for(
    tmp_path: Path, version: str
) -> None:
    assert build_facts(tmp_path, version) == f"-- key: torch-2.13-cp311, version: {version}\n"


@pytest.mark.parametrize("version", ["2.12.1", "2.14.0", "2.1.3", "3.2.13"])
def test_another_torch_stops_the_build_and_both_are_named(tmp_path: Path, version: str) -> None:
    said = build_facts(tmp_path, version)
    assert "key:" not in said
    assert f"bringup is written for torch 2.13, and {tmp_path}/python has torch {version}" in said
    assert "pip install torch==2.13.*, or build without operators" in said
    assert "-C cmake.define.BRINGUP_TORCH=OFF" in said


def test_no_torch_is_built_without_and_said(tmp_path: Path) -> None:
    said = build_facts(tmp_path, "")
    assert said.startswith("-- key: , version:")
    assert "torch is not importable: building without the torch library" in said
