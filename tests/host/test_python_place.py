"""Which Python the bridge takes where the program names none: that of the environment around it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.installed_package import link_other_packages, put_package

from bringup._native import core
from bringup.cli._exit_codes import ExitCode

onnx = pytest.importorskip("onnx")

ROOT = Path(__file__).parents[2]
NATIVE = Path(core().__file__).parent
LIBDIR = Path(sysconfig.get_config_var("LIBDIR"))
LIBRARY = f"libpython{sysconfig.get_config_var('LDVERSION')}.so.1.0"
STANDARD = Path(sysconfig.get_path("stdlib")).name
WHICH = (
    "import sys; print('runs in', sys.prefix); print('bringup of', __import__('bringup').__file__)"
)

pytestmark = pytest.mark.skipif(
    not (LIBDIR / LIBRARY).is_file(), reason="this Python has only a static library"
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the package, moved after it was made."""
    made = tmp_path_factory.mktemp("venv") / "made"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True)
    site = made / "lib" / STANDARD / "site-packages"
    link_other_packages(site)
    put_package(site)
    moved = made.with_name("an environment, é")
    made.rename(moved)
    return moved


def site_of(environment: Path) -> Path:
    return environment / "lib" / STANDARD / "site-packages"


def bringupc(
    program: Path, folder: Path, *options: object, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs it on a small model, without a variable that could help it."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Abs(x) }'
    )
    onnx.save(model, folder / "tiny.onnx")
    (folder / "which.py").write_text(WHICH)
    made = ("-o", folder / "out.onnx", "--pass-path", folder / "which.py")
    return subprocess.run(
        [program, *map(str, (folder / "tiny.onnx", *made, *options))],
        env={"PATH": "/nowhere", "HOME": str(folder), **(variables or {})},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def said(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == ExitCode.NOTHING, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def failed(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stderr


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """`bringupc` of a package that is in no environment, as `pip install --target` makes it."""
    return put_package(tmp_path / "target")


def pretend_python(library: Path, version: str) -> None:
    """A library with the functions that the bridge calls; this one says which version it is."""
    text = (ROOT / "native" / "bridge" / "python_api.cpp").read_text()
    names = set(re.findall(r'"(Py\w+)"', text)) - {"Py_GetVersion"}
    lines = [f'const char* Py_GetVersion(void) {{ return "{version} (main, today)"; }}']
    lines += [f"void* {name}(void) {{ return 0; }}" for name in sorted(names)]
    source = library.with_suffix(".c")
    source.write_text("\n".join(lines))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)


def test_it_is_the_environment_around_the_package_wherever_that_was_moved(environment, tmp_path):
    program = site_of(environment) / "bringup" / "_native" / "bringupc"
    text = said(bringupc(program, tmp_path))
    assert f"runs in {environment}\n" in text
    assert f"bringup of {site_of(environment)}/bringup/__init__.py" in text
    assert onnx.load(tmp_path / "out.onnx").graph.node[0].op_type == "Abs"


def test_the_python_that_is_named_wins_over_the_one_around(environment, tmp_path):
    program = site_of(environment) / "bringup" / "_native" / "bringupc"
    other = tmp_path / "other"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(other)], check=True)
    link_other_packages(site_of(other))
    text = said(bringupc(program, tmp_path, "--python", other / "bin" / "python"))
    assert f"runs in {other}\n" in text
    assert f"bringup of {site_of(environment)}/bringup/__init__.py" in text


def test_a_link_to_the_bridge_alone_is_followed(environment, tmp_path):
    native = site_of(environment) / "bringup" / "_native"
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "libbringup_bridge.so"
    link.symlink_to(native / "libbringup_bridge.so")
    text = said(bringupc(native / "bringupc", tmp_path, "--bridge", link))
    assert f"runs in {environment}\n" in text


def test_a_link_to_the_folder_of_packages_is_not_followed(environment, tmp_path):
    """The package may be kept elsewhere: what it needs is where the link is."""
    kept = tmp_path / "kept"
    put_package(kept)
    other = tmp_path / "other"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(other)], check=True)
    link_other_packages(site_of(other))
    (site_of(other) / "bringup").symlink_to(kept / "bringup")
    native = site_of(other) / "bringup" / "_native"
    bridge = native / "libbringup_bridge.so"
    text = said(bringupc(native / "bringupc", tmp_path, "--bridge", bridge))
    assert f"runs in {other}\n" in text


def test_without_an_environment_around_it_the_loader_finds_the_library(target, tmp_path):
    link_other_packages(tmp_path / "others")
    paths = {"LD_LIBRARY_PATH": str(LIBDIR), "PYTHONHOME": sys.base_prefix}
    paths["PYTHONPATH"] = str(tmp_path / "others")
    text = said(bringupc(target, tmp_path, variables=paths))
    assert f"bringup of {target.parents[1]}/__init__.py" in text


def test_without_any_library_the_error_says_where_it_looked_and_how_to_name_one(target, tmp_path):
    (tmp_path / LIBRARY).write_text("no library")  # the loader ends with the first that it finds
    program = tmp_path / "py" / "bin" / "python"
    (tmp_path / "py" / "lib" / STANDARD).mkdir(parents=True)
    (tmp_path / "py" / "pyvenv.cfg").write_text(f"version = 3\n home={tmp_path}/py/bin \n")
    broken = {"LD_LIBRARY_PATH": str(tmp_path)}
    text = failed(bringupc(target, tmp_path, variables=broken))
    assert f"there is no environment around {target.parents[2]}, and the loader says:" in text
    assert f"{tmp_path / LIBRARY}" in text
    assert "--python-library FILE" in text
    text = failed(bringupc(target, tmp_path, "--python", program, variables=broken))
    assert f"{tmp_path}/py has no lib/{LIBRARY}, and the loader says:" in text


def test_a_python_of_another_version_is_refused_before_it_could_end_the_process(target, tmp_path):
    program = tmp_path / "py" / "bin" / "python"
    program.parent.mkdir(parents=True)
    (tmp_path / "py" / "pyvenv.cfg").write_text(f"home = {tmp_path}/py/bin\n")
    text = failed(bringupc(target, tmp_path, "--python", program))
    assert f"{program} is no {STANDARD}, which the package beside the bridge is for" in text
    assert f"{tmp_path}/py has no lib/{STANDARD}" in text


def test_a_library_of_another_version_is_refused_before_it_could_end_the_process(target, tmp_path):
    (tmp_path / "py" / "lib" / STANDARD).mkdir(parents=True)
    (tmp_path / "py" / "bin").mkdir()
    library = tmp_path / "py" / "lib" / LIBRARY
    pretend_python(library, "3.99.1")
    text = failed(bringupc(target, tmp_path, "--python", tmp_path / "py" / "bin" / "python"))
    assert f"{library} is Python 3.99.1, the package beside the bridge is for {STANDARD}" in text


def test_the_bridge_has_no_path_of_the_machine_that_built_it():
    data = (NATIVE / "libbringup_bridge.so").read_bytes()
    assert os.fsencode(sys.prefix) not in data
    assert os.fsencode(sys.base_prefix) not in data
