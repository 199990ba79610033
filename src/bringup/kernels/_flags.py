"""The sources of the shipped kernels, and their compiler options beyond those of every kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from bringup import jit

# For products, whose loops are written as vectors and unrolled by hand: -O3 takes twice as long to
# compile and gives the same speed.
UNROLLED = ("-O1", "-fexpensive-optimizations")


def kernel_source(name: str, kind: Literal["host", "device"] = "device") -> jit.Source:
    """Return the C++ source `csrc/<name>.cpp`."""
    return jit.Source(Path(__file__).parent / "csrc" / f"{name}.cpp", kind=kind)
