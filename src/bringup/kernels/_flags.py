"""The sources of the shipped kernels, and their compiler options beyond those of every kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from bringup import jit

__all__ = ["CONTRACTED", "UNROLLED", "kernel_source"]

# A shipped kernel is held to a tolerance (docs/numerics.md): `a * b + c` may be rounded once.
CONTRACTED = ("-ffp-contract=fast",)

# For products, whose loops are written as vectors and unrolled by hand: -O3 takes twice as long to
# compile and gives the same speed. Without the second option g++ -O1 contracts nothing.
UNROLLED = ("-O1", "-fexpensive-optimizations", *CONTRACTED)


def kernel_source(name: str, kind: Literal["host", "device"] = "device") -> jit.Source:
    """The C++ source `csrc/<name>.cpp`."""
    return jit.Source(Path(__file__).parent / "csrc" / f"{name}.cpp", kind=kind)
