"""The package in a folder of its own, as an installation has it."""

from __future__ import annotations

import re
import shutil
import sysconfig
from pathlib import Path

import bringup
from bringup._native import _manifest, core, include_dir


def link_other_packages(folder: Path, *, without: str = "torch") -> None:
    """numpy, onnx and what else the package needs, and not the package itself."""
    folder.mkdir(exist_ok=True)
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if not re.match(rf"{without}\b|.*bringup|.*\.pth$", package.name):
            (folder / package.name).symlink_to(package)


def put_package(folder: Path) -> Path:
    """The package as pip would lay it there, without the library that links torch; the path of its
    `bringupc`.
    """
    sources = Path(bringup.__file__).parent
    left_out = shutil.ignore_patterns("*.so", "torch-*")
    shutil.copytree(sources, folder / "bringup", ignore=left_out)
    shutil.copytree(include_dir(), folder / "bringup" / "include", dirs_exist_ok=True)
    built = Path(core().__file__).parent
    native = folder / "bringup" / "_native"
    for name in (*(artifact.file for artifact in _manifest.read(built)), _manifest.MANIFEST):
        shutil.copy(built / name, native)
    return native / "bringupc"
