"""Where in the user's code something happened, and the errors that say so."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import torch

from bringup.errors import CaptureError

__all__ = ["capture_error", "user_line"]

_NOT_THE_USER = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


def user_line() -> str:
    """`"file.py:12 in forward"` of the innermost frame outside torch and this package, or ""."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith((*_NOT_THE_USER, "<frozen")):
            return f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
        frame = frame.f_back
    return ""


def capture_error(message: str) -> CaptureError:
    """The error to raise for `message`, with the user's line. Called by the native recorder."""
    line = user_line()
    return CaptureError(f"{message}\n  at {line}" if line else message)
