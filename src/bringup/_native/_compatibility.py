"""Whether the native core fits the engine that a C++ program has brought already: keys are compared
before it is opened, as the linker would only name a symbol.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

_ENGINE = "libbringup_engine.so"
_MARK = b"bringup core build key: "
_KEY_SIZE = 16


def mismatch(core_file: Path) -> str:
    """Return why this core does not fit the engine of the process, or ""."""
    try:
        engine = ctypes.CDLL(_ENGINE, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return ""
    try:
        ask = engine.bringup_engine_build_key
    except AttributeError:
        theirs = "none, as engines of older builds"
    else:
        ask.restype = ctypes.c_char_p
        theirs = ask().decode()
    ours = key_in(core_file)
    if ours == theirs:
        return ""
    return (
        f"{core_file} was built with the key {ours}, the {_ENGINE} of this process with {theirs}: "
        "take both from one package"
    )


def key_in(core_file: Path) -> str:
    """Return the key in the file of a core; "none" where it has no such."""
    with core_file.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held:
        start = held.find(_MARK)
        if start < 0:
            return "none"
        start += len(_MARK)
        return held[start : start + _KEY_SIZE].decode("ascii", "replace")
