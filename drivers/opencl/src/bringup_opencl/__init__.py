"""The driver of OpenCL devices, `ocl` in torch: where its library is, and its operators.

`load()` registers them with `devices.kernel`; until then, and for what they do not support, the
device's operators fall back.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bringup.devices import OperatorKernel

__all__ = ["check_kernels", "driver_path", "load", "unload"]


def driver_path() -> Path:
    """Return the driver's shared library, for `devices.load_driver("opencl")`. Raises
    `FileNotFoundError`: it is not built.
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


def load() -> dict[str, OperatorKernel]:
    """Give the loaded driver's device its kernels; the same ones a second time. Each is compiled at
    its first call.

    Returns:
        The handle of each operator, by its name.

    Raises:
        DeviceError: no driver is loaded, other code has a kernel for one of the operators, or there
            is no such library as BRINGUP_OPENCL_BLAS wants.
    """
    from bringup_opencl import _load  # with torch, which finding the driver does not need

    loaded: dict[str, OperatorKernel] = _load.load()
    return loaded


def unload() -> None:
    """Take all of them out again: the operators fall back as before."""
    from bringup_opencl import _load

    _load.unload()
