"""The shipped kernels' sources, the binaries that a wheel brings, and their compiler options."""

from __future__ import annotations

import functools
import platform
from pathlib import Path
from typing import Literal

from bringup import jit

# For products, whose loops are written as vectors and unrolled by hand: -O3 takes twice as long to
# compile and gives the same speed.
UNROLLED = ("-O1", "-fexpensive-optimizations")
PREBUILT = Path(__file__).parent / "prebuilt"


def kernel_source(name: str, kind: Literal["host", "device"] = "device") -> jit.Source:
    """Return the C++ source `csrc/<name>.cpp`."""
    _use_prebuilt()
    return jit.Source(Path(__file__).parent / "csrc" / f"{name}.cpp", kind=kind)


@functools.cache
def _use_prebuilt() -> None:
    """Take what the wheel brings for this machine into the cache, where nothing compiles."""
    bundle = PREBUILT / f"{platform.machine()}.bundle"
    if jit.toolchain("cpu").problem and bundle.exists():
        jit.use_bundle(bundle)
