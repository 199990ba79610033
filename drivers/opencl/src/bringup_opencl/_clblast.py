"""Products by CLBlast: host entries in front of the package's own kernels, which have the rest."""

from __future__ import annotations

import ctypes
import os
from dataclasses import replace

import torch

from bringup.devices import Operator
from bringup.errors import DeviceError

__all__ = ["SETTING", "operators"]

SETTING = "BRINGUP_OPENCL_BLAS"

_FLOATING = (torch.float32, torch.float64, torch.float16)
_PRODUCTS = tuple(
    Operator(
        f"aten::{name}", _FLOATING, file="clblast.cpp", kind="raw", entry="run",
        strided=tuple(strided.split()), host=True,
    )
    for name, strided in (
        ("mm", "self mat2 out"), ("bmm", "self mat2 out"), ("addmm", "self mat1 mat2 out"),
        ("baddbmm", "self batch1 batch2 out"),
    )
)  # fmt: skip


def operators() -> tuple[Operator, ...]:
    """Return what the setting wants: nothing where it is "tiled" or not set. Raises `DeviceError`:
    there is no such library, or the setting is nothing that is known.
    """
    wanted = os.environ.get(SETTING) or "tiled"
    if wanted == "tiled":
        return ()
    library = "libclblast.so.1" if wanted == "clblast" else wanted
    if wanted != "clblast" and "/" not in wanted:
        raise DeviceError(f"{SETTING}={wanted}: expected tiled, clblast or the library's path")
    try:
        ctypes.CDLL(library)
    except OSError as error:
        raise DeviceError(
            f"{SETTING}={wanted}: CLBlast cannot be loaded ({error}): "
            "apt-get install libclblast1, or leave the setting out"
        ) from None
    return tuple(replace(one, flags=(f'-DCLBLAST="{library}"',)) for one in _PRODUCTS)
