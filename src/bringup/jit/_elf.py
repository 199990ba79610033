"""The few bytes of an ELF file that say which machine it is for (System V ABI, chapter 4)."""

from __future__ import annotations

import os

__all__ = ["DEVICE_CODE", "machine_of", "this_machine"]

DEVICE_CODE = "an NVIDIA GPU"

# e_machine -> the name that `uname -m` has for it.
_MACHINES = {
    3: "i686",
    8: "mips",
    20: "ppc",
    21: "ppc64le",
    22: "s390x",
    40: "armv7l",
    62: "x86_64",
    183: "aarch64",
    190: DEVICE_CODE,
    243: "riscv64",
    258: "loongarch64",
}


def machine_of(path: str | os.PathLike[str]) -> str:
    """The machine that the file was built for, or "" for a file that is no ELF.

    Raises `OSError` when it cannot be read.
    """
    with open(path, "rb", buffering=0) as file:
        head = file.read(20)
    if len(head) < 20 or head[:4] != b"\x7fELF":
        return ""
    number = int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")
    return _MACHINES.get(number, f"machine number {number}")


def this_machine() -> str:
    """What `uname -m` says."""
    return os.uname().machine
