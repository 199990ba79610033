"""Building libraries with passes, for the tests of native passes."""

from __future__ import annotations

import subprocess
from pathlib import Path

from bringup._native import include_dir

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "passes" / "native"
LIBRARIES = ROOT / "tests" / "native" / "passes"


def build(source: Path, library: Path) -> Path:
    """Build a library with the plain compiler against the headers that are installed."""
    is_c = source.suffix == ".c"
    command = ["gcc" if is_c else "g++", "-std=c11" if is_c else "-std=c++17", "-O0", "-shared"]
    command += ["-fPIC", f"-I{include_dir()}", str(source), "-o", str(library)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return library
