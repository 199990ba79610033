"""The torch.compile backend and the dialects. Importing it makes `backend="bringup"` known.

In reading order: `apply_passes` (any graph, in place) and `last_report`, `dynamo_backend`
(torch.compile), `AtenDialect` (what torch's operators are).
"""

from bringup.compiler.apply import apply_passes, last_report
from bringup.compiler.aten import AtenDialect
from bringup.compiler.backend import CompileOptions, announce, dynamo_backend
from bringup.compiler.trace import trace_pattern

announce()

__all__ = [
    "AtenDialect",
    "CompileOptions",
    "apply_passes",
    "dynamo_backend",
    "last_report",
    "trace_pattern",
]
