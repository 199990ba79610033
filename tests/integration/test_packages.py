"""Operators and passes as packages: built, installed elsewhere, found by entry point, used where
there is no compiler; and what `bringup new` writes passes its own tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.forked_commands import program_of
from tests.forked_python import PACKAGES, run_forked

from bringup import cli

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow
EXAMPLE = ROOT / "examples" / "op_package"


def run(*arguments: str, folder: Path, **environment: str) -> str:
    """Run what Python is given in a folder and return its output. It must succeed."""
    paths = os.pathsep.join([environment.pop("PYTHONPATH", ""), *sys.path]).strip(os.pathsep)
    variables = {**os.environ, **environment, "PYTHONPATH": paths}
    program, rest = program_of(arguments)
    done = run_forked(program, *rest, environment=variables, folder=folder, preload=PACKAGES)
    assert done.returncode == 0, f"{arguments}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def install(package: Path, site: Path) -> Path:
    """Installs a package as pip does from its wheel, into a folder of its own."""
    offline = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    command = [sys.executable, "-m", "pip", "install", *offline, "--target", str(site)]
    done = subprocess.run([*command, str(package)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, its kernels compiled beforehand, built as a wheel and installed."""
    folder = tmp_path_factory.mktemp("example")
    package = folder / "package"
    shutil.copytree(EXAMPLE, package, ignore=shutil.ignore_patterns("*.bundle", "build", "dist"))
    run("-m", "bringup_example_rms_norm.build_kernels", folder=package, PYTHONPATH="src")
    return install(package, folder / "site")


USE = """
import sys
import torch
from bringup import jit, ops

assert "bringup_example_rms_norm" not in sys.modules
jit.freeze()  # a compile would be an error, with a compiler too
report = ops.load_op_plugins()
assert report.errors == [], report.errors
(names,) = [names for key, names in report.loaded.items() if "rms_norm" in key]
assert set(names) == {"example::rms_norm", "example::rms_norm_backward"}

from bringup_example_rms_norm.model import Block
torch.manual_seed(0)
model, x = Block(8), torch.randn(3, 8)
torch.testing.assert_close(
    torch.ops.example.rms_norm(x, model.norm.weight),
    torch.nn.functional.rms_norm(x, (8,), model.norm.weight, 1e-6),
)
model(x).sum().backward()
expected = model.norm.weight.grad.clone()
model.zero_grad()
torch.compile(model, fullgraph=True, backend="aot_eager")(x).sum().backward()
torch.testing.assert_close(model.norm.weight.grad, expected)
assert ops.load_op_plugins().loaded == report.loaded
print(jit.toolchain("cpu").problem)
"""


def test_the_example_works_from_its_wheel_where_there_is_no_compiler(
    site: Path, tmp_path: Path
) -> None:
    environment = {
        "PYTHONPATH": str(site),
        "PATH": str(tmp_path),
        "BRINGUP_CACHE_DIR": str(tmp_path / "cache"),
    }
    said = run("-c", USE, folder=tmp_path, **environment)
    assert "PATH" in said  # why there is no compiler


def test_the_example_passes_its_own_tests(tmp_path: Path) -> None:
    package = tmp_path / "package"
    shutil.copytree(EXAMPLE, package, ignore=shutil.ignore_patterns("*.bundle", "build", "dist"))
    run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", folder=package)


LOADED = """
from bringup import {system}
report = {system}.load_{one}_plugins()
assert report.errors == [], report.errors
print([name for key, names in report.loaded.items() for name in names if "my_first" in key])
"""


@pytest.mark.parametrize(
    ("kind", "system", "one", "names"),
    [
        ("kernel", "ops", "op", "['my_first::my_first', 'my_first::my_first_backward']"),
        ("pass", "passes", "pass", "['MyFirst']"),
    ],
)
def test_a_new_package_passes_its_tests_unedited_and_is_found_once_installed(
    kind: str, system: str, one: str, names: str, tmp_path: Path
) -> None:
    assert cli.main(["new", kind, "my_first", "--into", str(tmp_path)]) == 0
    package = tmp_path / "my_first"
    said = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", folder=package)
    assert "passed" in said
    assert "ratio" in run("benchmarks/bench_my_first.py", folder=package, PYTHONPATH="src")
    if kind == "kernel":
        made = run("-m", "my_first.build_kernels", folder=package, PYTHONPATH="src")
        assert made.strip().endswith("kernels.bundle: 4 kernels")
    site = install(package, tmp_path / "site")
    assert (site / "my_first" / "kernels.bundle").is_file() == (kind == "kernel")
    program = LOADED.format(system=system, one=one)
    assert run("-c", program, folder=tmp_path, PYTHONPATH=str(site)).strip() == names


def test_a_new_driver_is_built_passes_its_tests_unedited_and_is_found_once_installed(
    tmp_path: Path,
) -> None:
    assert cli.main(["new", "driver", "my_board", "--into", str(tmp_path)]) == 0
    package = tmp_path / "my_board"
    for step in (["-S", ".", "-B", "build", "-G", "Ninja"], ["--build", "build"]):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        tool = shutil.which("cmake", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        assert tool is not None
        environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        made = subprocess.run(
            [tool, *step], cwd=package, env=environment, capture_output=True, text=True, check=False
        )
        assert made.returncode == 0, made.stdout + made.stderr
        assert "warning" not in made.stdout
    said = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", folder=package)
    assert "passed" in said
    site = install(package, tmp_path / "site")
    program = "from bringup import devices; print(devices.load_driver('my_board').path)"
    found = run("-c", program, folder=tmp_path, PYTHONPATH=str(site)).strip()
    assert found == str(site / "my_board" / "libmy_board.so")
