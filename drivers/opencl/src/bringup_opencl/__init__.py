"""The driver of OpenCL devices, `ocl` in torch: where its library is."""

from __future__ import annotations

from pathlib import Path

__all__ = ["check_kernels", "driver_path"]


def driver_path() -> Path:
    """Return the driver's shared library, for `devices.load_driver("opencl")`.

    Raises:
        FileNotFoundError: it is not built.
    """
    library = Path(__file__).with_name("libocl.so")
    if not library.is_file():
        raise FileNotFoundError(
            f"{library} is not built: run `cmake -S . -B build && cmake --build build` in the "
            "folder drivers/opencl, or `pip install` that folder"
        )
    return library


def check_kernels() -> Path:
    """Return the device code with which `bringup driver check opencl` tests launches."""
    return Path(__file__).with_name("check_kernels.cl")
