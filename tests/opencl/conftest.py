"""What the tests of drivers/opencl share: the driver, built with the C compiler alone."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.sweeps.support import FULL
from tests.tool_module import tool_module

from bringup import _native

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "drivers" / "opencl" / "src"
FLAGS = ("-std=c11", "-D_POSIX_C_SOURCE=200809L", "-fvisibility=hidden", "-fPIC", "-shared", "-O1")
STRICT = ("-Wall", "-Wextra", "-Werror")
# For tests of very many kernels, which PoCL compiles in half the time then; not in `make sweep`.
UNOPTIMIZED = {} if FULL else {"POCL_EXTRA_BUILD_FLAGS": "-cl-opt-disable"}


def build(library: Path, compiler: str = "cc", more: Sequence[str] = ()) -> Path:
    """Return the driver, built as `library`."""
    library.parent.mkdir(parents=True, exist_ok=True)
    sources = [str(file) for file in sorted(SOURCES.glob("*.c"))]
    command = [compiler, *FLAGS, *STRICT, *more, f"-I{_native.include_dir()}", *sources]
    command += ["-o", str(library), "-lOpenCL", "-lpthread"]
    subprocess.run(command, check=True)
    return library


def need(*libraries: str) -> None:
    """Skip where these are missing; where `make test` installs them that is a failure."""
    tool = tool_module("install_compilers")
    missing = [package for package in tool.missing_libraries() if package in libraries]
    if missing:
        words = f"OpenCL is missing: apt-get install {' '.join(missing)}"
        if tool.can_install():
            pytest.fail(words)
        pytest.skip(words)


@pytest.fixture(scope="session", autouse=True)
def _opencl_is_installed(tmp_path_factory: pytest.TempPathFactory) -> None:
    need("pocl-opencl-icd", "ocl-icd-opencl-dev", "opencl-headers")
    shared = os.environ.get("TEST_KERNEL_CACHE")
    folder = Path(shared) if shared else tmp_path_factory.mktemp("kernels")
    os.environ["POCL_CACHE_DIR"] = str(folder / "pocl")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("opencl") / "libocl.so", shutil.which("cc") or "gcc")
