"""What the tests of drivers/cuda share: the driver and a library in the place of libcuda."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.opencl.driver_program import CALLS

from bringup import _native

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "drivers" / "cuda" / "src"
STRICT = ("-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread")


def build(library: Path, *more: str) -> Path:
    """Return the driver, built as `library` with the C compiler alone."""
    sources = [str(file) for file in sorted(SOURCES.glob("*.c"))]
    command = ["cc", "-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O0", *STRICT, *more]
    command += [f"-I{_native.include_dir()}", *sources, "-o", str(library), "-ldl"]
    subprocess.run(command, check=True)
    return library


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("cuda") / "libnv.so")


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that records what it is called for."""
    made = tmp_path_factory.mktemp("stand_in") / "libcuda.so"
    sources = map(str, Path(__file__).parent.glob("stand_in*.cpp"))
    command = ["c++", "-std=c++20", "-O0", *STRICT, f"-I{SOURCES}", *sources, "-o", str(made)]
    subprocess.run(command, check=True)
    return made


@pytest.fixture(scope="session")
def torch_cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a CPU build of torch lacks for CUDA tensors."""
    made = tmp_path_factory.mktemp("torch_cuda") / "libtorch_cuda.so"
    folder = Path(torch.__path__[0])
    command = ["c++", "-std=c++20", "-O0", *STRICT, f"-I{SOURCES}", "-isystem"]
    command += [str(folder / "include"), str(Path(__file__).with_name("torch_cuda.cpp"))]
    command += ["-o", str(made), f"-L{folder / 'lib'}", "-lc10"]
    subprocess.run(command, check=True)
    return made


@pytest.fixture(scope="session")
def package(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has the package as it is installed, with the driver in it."""
    folder = tmp_path_factory.mktemp("installed")
    there = folder / "bringup_cuda"
    shutil.copytree(SOURCES / "bringup_cuda", there, ignore=shutil.ignore_patterns("*.so"))
    shutil.copy(library, there / "libnv.so")
    about = folder / "bringup_cuda-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: bringup-cuda\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        "[bringup.drivers]\ncuda = bringup_cuda\n[bringup.targets]\nnv = bringup_cuda._target\n"
    )
    return folder


@pytest.fixture(autouse=True)
def _on_the_stand_in(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_CUDA_LIBRARY", str(stand_in))


Recorded = Callable[[str], list[str]]


@pytest.fixture
def recorded(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """`recorded(program)`: what CUDA was called for by a program that calls the driver."""
    from tests.forked_python import output_of

    log = tmp_path / "calls"

    def run(program: str) -> list[str]:
        log.write_text("")
        variables = {"CUDA_STAND_IN_LOG": str(log), "CUDA_STAND_IN_DEVICES": "2"}
        assert output_of(CALLS + program + "\nprint('done')", str(library), **variables) == "done"
        return log.read_text().splitlines()

    return run
