"""Where in the user's code something happened, and the errors that say so."""

from __future__ import annotations

import ast
import dis
import itertools
import linecache
import sys
from pathlib import Path
from types import FrameType

import torch

from bringup.errors import CaptureError

NOT_THE_USER = (str(Path(torch.__file__).parent), str(Path(__file__).parent.parent), "<frozen")


def not_the_user() -> tuple[str, ...]:
    """Return how the names of files begin whose code is not the user's."""
    inductor = sys.modules.get("torch._inductor.runtime.cache_dir_utils")
    return NOT_THE_USER if inductor is None else (*NOT_THE_USER, inductor.cache_dir())


_HOST_READS = {"aten::_local_scalar_dense": "item(), bool(), int() or float() of a tensor"}
"""What users write, by the operator that reads; where their line cannot be read."""


def user_line() -> str:
    """`"file.py:12 in forward"` of the innermost frame outside torch and this package, or ""."""
    frame = _user_frame()
    if frame is None:
        return ""
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _user_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    others = not_the_user()
    while frame is not None:
        if not frame.f_code.co_filename.startswith(others):
            return frame
        frame = frame.f_back
    return None


def _expression(frame: FrameType) -> str:
    """Return what the frame is evaluating, as it stands in the source, or ""."""
    code = frame.f_code
    if not hasattr(code, "co_positions"):  # Python 3.10
        return ""
    positions = itertools.islice(code.co_positions(), frame.f_lasti // 2, None)
    first, last, start, end = next(positions, (None,) * 4)
    if first is None or last is None or start is None or end is None:
        return ""
    # Columns count bytes.
    lines = [linecache.getline(code.co_filename, n).encode() for n in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    written = b"".join(lines).decode(errors="replace")
    if written and "JUMP" in dis.opname[code.co_code[frame.f_lasti]]:
        written = f"bool({_condition_of(written)})"
    text = " ".join(written.split())
    return text if len(text) <= 100 else text[:97] + "..."


def _condition_of(text: str) -> str:
    """Return the `x > 0` of `if x > 0: ...`, as a jump's position is its statement's."""
    head = text.removeprefix("el")
    try:
        statement = ast.parse(head).body[0]
    except (SyntaxError, IndexError):
        return text
    node = statement.value if isinstance(statement, ast.Expr) else statement
    if isinstance(node, (ast.If, ast.While, ast.IfExp, ast.Assert)):
        return ast.unparse(node.test)
    return text


def host_read_error(op: str, tensor: str) -> CaptureError:
    """Return the error for `op` reading a tensor on the host, for the native recorder."""
    frame = _user_frame()
    written = _expression(frame) if frame is not None else ""
    return capture_error(
        f"{f'`{written}`' if written else _HOST_READS.get(op, op)} reads the value of a tensor"
        f" {tensor} on the host: a replay would not see a new value. Compute with tensors, or read"
        " the value before the capture"
    )


def capture_error(message: str) -> CaptureError:
    """Return the error for `message` with the user's line, for the native recorder."""
    line = user_line()
    return CaptureError(f"{message}\n  at {line}" if line else message)
