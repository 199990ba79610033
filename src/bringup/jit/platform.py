"""Refuse to be imported where no kernels can be compiled and loaded: on anything but Linux."""

from __future__ import annotations

import os
import sys

from bringup.errors import NativeLibraryError


def check_platform() -> None:
    """Raise `NativeLibraryError` on anything but Linux."""
    system: str = sys.platform
    if system != "linux":
        machine = os.uname().machine if hasattr(os, "uname") else "this machine"
        raise NativeLibraryError(
            f"bringup compiles and loads kernels on Linux (x86-64 and aarch64), and this is "
            f"{system} on {machine}: run it on a Linux machine, in a Linux container, or in WSL 2"
        )


check_platform()
