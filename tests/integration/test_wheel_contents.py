"""What a wheel holds: the package, its native libraries with true manifests, and nothing else."""

from __future__ import annotations

import email
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from bringup._native import _manifest

ROOT = Path(__file__).parents[2]
SUFFIXES = {
    ".c",
    ".cmake",
    ".cpp",
    ".h",
    ".in",
    ".json",
    ".map",
    ".py",
    ".pyi",
    ".so",
    ".tmpl",
    ".txt",
}
OTHERS = {
    "page.html",
    "py.typed",
    "bringup-driver-check",
    "bringupc",
    "LICENSE",
    "METADATA",
    "RECORD",
    "WHEEL",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    folder = tmp_path_factory.mktemp("wheel")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    argv = [sys.executable, "-m", "pip", "wheel", *options, str(ROOT)]
    subprocess.run(argv, check=True, env=os.environ | {"PATH": path})
    (made,) = folder.glob("*.whl")
    with zipfile.ZipFile(made) as archive:
        yield archive


def test_a_wheel_has_no_stray_files(wheel: zipfile.ZipFile) -> None:
    names = [PurePosixPath(name) for name in wheel.namelist()]
    folders = {"bringup", "bringup_sim_ops", "bringup-0.1.0.dist-info"}
    assert {name.parts[0] for name in names} == folders
    assert PurePosixPath("bringup_sim_ops/kernels/pow.cpp") in names
    assert {str(n) for n in names if n.suffix not in SUFFIXES and n.name not in OTHERS} == set()
    libraries = {str(name.parent) for name in names if name.suffix == ".so"}
    minor = f"torch-2.13-{_manifest.interpreter().abi}"
    assert libraries == {"bringup/_native", f"bringup/_native/{minor}"}
    assert not any("__pycache__" in name.parts or "tests" in name.parts[:2] for name in names)


def test_a_wheel_s_metadata_says_which_python_it_needs_and_its_licence(
    wheel: zipfile.ZipFile,
) -> None:
    metadata = email.message_from_bytes(wheel.read("bringup-0.1.0.dist-info/METADATA"))
    assert (metadata["Requires-Python"], metadata["License-Expression"]) == (">=3.10", "Apache-2.0")
    licence = wheel.read("bringup-0.1.0.dist-info/licenses/LICENSE")
    assert licence == (ROOT / "LICENSE").read_bytes()
    tags = email.message_from_bytes(wheel.read("bringup-0.1.0.dist-info/WHEEL"))
    here = _manifest.interpreter()
    assert tags["Tag"] == f"{here.python}-{here.abi}-{here.platform}"


def test_a_wheel_s_manifests_list_every_native_file_with_its_digest(
    wheel: zipfile.ZipFile,
) -> None:
    listed: dict[str, str] = {}
    for name in wheel.namelist():
        if name.endswith("/manifest.json"):
            folder = PurePosixPath(name).parent
            for artifact in json.loads(wheel.read(name))["artifacts"]:
                listed[str(folder / artifact["file"])] = artifact["sha256"]
    native = {n: wheel.read(n) for n in wheel.namelist() if wheel.read(n)[:4] == b"\x7fELF"}
    assert listed == {name: hashlib.sha256(data).hexdigest() for name, data in native.items()}
    assert any(name.endswith("libbringup_engine.so") for name in listed)
