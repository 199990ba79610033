"""The example of passes in C and C++, as its README says: built with CMake against the package,
found through the pass path, run on a torch model, results compared before and after.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.forked_python import PACKAGES, output_of_module, run_forked

EXAMPLE = Path(__file__).parents[2] / "examples" / "passes" / "native"
PASSES = [
    "DropDoubleNeg",
    "DropReluOfRelu",
    "HardswishToClamp",
    "MmAddToAddmm",
    "MulAddToAddcmul",
    "SiluToSigmoid",
]


def run(*command: str) -> str:
    """The output of a command, which must succeed."""
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the example's libraries, built outside of the sources."""
    assert shutil.which("cmake") is not None, "the tests need cmake: pip install cmake"
    folder = tmp_path_factory.mktemp("example")
    config = run(sys.executable, "-m", "bringup", "config", "--cmake").strip()
    run("cmake", "-S", str(EXAMPLE), "-B", str(folder), f"-Dbringup_DIR={config}")
    run("cmake", "--build", str(folder))
    return folder


def test_cmake_builds_a_library_for_each_language(built: Path) -> None:
    assert sorted(path.name for path in built.glob("*.so")) == ["passes_c.so", "passes_cpp.so"]


def test_every_pass_of_the_example_rewrites_the_model(built: Path) -> None:
    """Every pass found its place, and the result is that of the model."""
    environment = {**os.environ, "BRINGUP_PASS_PATH": str(built)}
    done = run_forked(EXAMPLE / "run.py", environment=environment, preload=PACKAGES)
    assert done.returncode == 0, done.stderr
    *counts, difference = done.stdout.splitlines()
    found = dict(line.split(": ") for line in counts)
    assert sorted(found) == PASSES
    assert all(int(count) >= 1 for count in found.values()), found
    assert difference.startswith("greatest difference ")
    assert float(difference.rsplit(maxsplit=1)[1]) < 1e-4


def test_command_line_lists_the_passes_of_the_libraries(built: Path) -> None:
    place = {"BRINGUP_PASS_PATH": str(built)}
    listed = output_of_module("bringup", "passes", "list", preload=PACKAGES, **place)
    assert all(name in listed for name in PASSES), listed
