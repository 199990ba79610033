"""The driver of NVIDIA GPUs, `nv` in torch: where its library and its checks' device code are.

It has no operators: those of the device fall back, but for a package's or a user's own.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["check_kernels", "driver_path"]


def driver_path() -> Path:
    """Return the driver's shared library, for `devices.load_driver("cuda")`. Raises
    `FileNotFoundError`: it is not built.
    """
    library = Path(__file__).with_name("libnv.so")
    if not library.is_file():
        raise FileNotFoundError(
            f"{library} is not built: run `cmake -S . -B build && cmake --build build` in the "
            "folder drivers/cuda, or `pip install` that folder"
        )
    return library


def check_kernels() -> Path:
    """Return the device code with which `bringup driver check cuda` tests launches."""
    return Path(__file__).with_name("check_kernels.ptx")
