"""`bringup config`: what a build outside of Python needs to know."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bringup import _native
from bringup.errors import NativeLibraryError


def cmake_dir() -> Path:
    """Return the folder for `CMAKE_PREFIX_PATH`-style use: it holds `bringup-config.cmake`."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "cmake", package.parent.parent / "cmake"):
        if (folder / "bringup-config.cmake").is_file():
            return folder
    raise NativeLibraryError(
        f"bringup-config.cmake is neither in {package / 'cmake'} nor in the sources: "
        "reinstall with `pip install --no-build-isolation .`"
    )


def config(
    includes: Annotated[bool, typer.Option("--includes", help="The flags -I...")] = False,
    cflags: Annotated[
        bool,
        typer.Option("--cflags", help="All flags that a kernel is compiled with, -I... included."),
    ] = False,
    cmake: Annotated[
        bool, typer.Option("--cmake", help="The folder to give as -Dbringup_DIR=... to cmake.")
    ] = False,
) -> None:
    """Print what builds kernels: c++ $(bringup config --cflags) kernel.cpp -o kernel.so."""
    if includes + cflags + cmake != 1:
        raise typer.BadParameter("give exactly one of --includes, --cflags, --cmake")
    if includes:
        typer.echo(f"-I{_native.include_dir()}")
    elif cflags:
        typer.echo(" ".join(_compile_flags()))
    else:
        typer.echo(str(cmake_dir()))


def _compile_flags() -> tuple[str, ...]:
    from bringup import jit
    from bringup.errors import MissingCompilerError

    found = jit.toolchain("cpu")
    if found.problem:
        raise MissingCompilerError(found.problem)
    # $(bringup config --cflags) is split at spaces; what has one fixes the text of __TIMESTAMP__
    return tuple(flag for flag in found.flags if " " not in flag)
