"""The sources of the shipped kernels, and their compiler options beyond those of every kernel."""

from __future__ import annotations

from pathlib import Path

from bringup import jit

__all__ = ["CONTRACTED", "kernel_source"]

# A shipped kernel is held to a tolerance (docs/numerics.md): `a * b + c` may be rounded once.
CONTRACTED = ("-ffp-contract=fast",)


def kernel_source(name: str) -> jit.Source:
    """The C++ source `csrc/<name>.cpp`, device code."""
    return jit.Source(Path(__file__).parent / "csrc" / f"{name}.cpp", kind="device")
