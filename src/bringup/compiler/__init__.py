"""The torch.compile backend and the dialects. Importing it makes `backend="bringup"` known.

In reading order: `apply_passes` (any graph, in place) and `last_report`, `dynamo_backend`
(torch.compile), `inductor_hooks` (passes in plain Inductor), `mine` (what repeats in a graph),
`register_replacement` (a pass from two torch functions), `bisect` (what makes a result wrong),
`bucket_ladder` (padded lengths with the least padding), `captures` (what captured graphs take),
`AtenDialect` (what torch's operators are), `onnx` (ONNX models; imported when it is asked for).
"""

import importlib
from typing import TYPE_CHECKING, Any

from bringup import passes
from bringup.compiler.apply import apply_passes, last_report
from bringup.compiler.aten import AtenDialect
from bringup.compiler.backend import announce, dynamo_backend
from bringup.compiler.bisection import Bisection, Culprit, bisect
from bringup.compiler.buckets import bucket_for, bucket_ladder
from bringup.compiler.mining import mine
from bringup.compiler.options import CompileOptions
from bringup.compiler.profiling import profiler_range
from bringup.compiler.replacement import register_replacement
from bringup.compiler.trace import trace_pattern

if TYPE_CHECKING:
    from bringup.compiler import onnx as onnx
    from bringup.compiler.captured import CaptureReport, captures
    from bringup.compiler.inductor import InductorPass, inductor_hooks

announce()
passes.profile_with(profiler_range)

__all__ = [
    "AtenDialect",
    "Bisection",
    "CaptureReport",
    "CompileOptions",
    "Culprit",
    "InductorPass",
    "apply_passes",
    "bisect",
    "bucket_for",
    "bucket_ladder",
    "captures",
    "dynamo_backend",
    "inductor_hooks",
    "last_report",
    "mine",
    "register_replacement",
    "trace_pattern",
]


_LATER = {
    "CaptureReport": "captured",
    "InductorPass": "inductor",
    "captures": "captured",
    "inductor_hooks": "inductor",
}


def __getattr__(name: str) -> Any:
    """Captures, Inductor and onnx are imported when they are asked for."""
    if name in _LATER:
        return getattr(importlib.import_module(f"bringup.compiler.{_LATER[name]}"), name)
    if name == "onnx":
        return importlib.import_module("bringup.compiler.onnx")
    raise AttributeError(f"module 'bringup.compiler' has no attribute {name!r}")
