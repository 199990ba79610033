"""The torch.compile backend and the dialects. Importing it makes `backend="bringup"` known.

In reading order: `apply_passes` (any graph, in place) and `last_report`, `dynamo_backend`
(torch.compile), `inductor_hooks` (passes in plain Inductor), `mine` (what repeats in a graph),
`register_replacement` (a pass from two torch functions), `bisect` (what makes a result wrong),
`bucket_ladder` (padded lengths with the least padding), `captures` (what captured graphs take),
`frozen_models` (what frozen weights take), `compile_file` (a model's file into another),
`AtenDialect` (what torch's operators are), `onnx` (ONNX models).

Each is imported when it is asked for: ONNX models need no torch.
"""

import importlib

from bringup._lazy import lazily
from bringup.compiler.torch_registration import announce

TYPE_CHECKING = False  # `typing` is imported by none of this
if TYPE_CHECKING:
    from bringup.compiler import onnx as onnx
    from bringup.compiler.apply import apply_passes
    from bringup.compiler.aten import AtenDialect
    from bringup.compiler.backend import dynamo_backend
    from bringup.compiler.bisection import Bisection, Culprit, bisect
    from bringup.compiler.buckets import bucket_for, bucket_ladder
    from bringup.compiler.captured_calls import CaptureReport, captures
    from bringup.compiler.file_compilation import compile_file
    from bringup.compiler.inductor.hooks import InductorPass, inductor_hooks
    from bringup.compiler.mining import mine
    from bringup.compiler.options import CompileOptions
    from bringup.compiler.pass_runs import last_report
    from bringup.compiler.replacement import register_replacement
    from bringup.compiler.served_models import FrozenReport, frozen_models
    from bringup.compiler.trace import trace_pattern

announce()

__all__ = [
    "AtenDialect", "Bisection", "CaptureReport", "CompileOptions", "Culprit", "FrozenReport",
    "InductorPass", "apply_passes", "bisect", "bucket_for", "bucket_ladder", "captures",
    "compile_file", "dynamo_backend", "frozen_models", "inductor_hooks", "last_report", "mine",
    "register_replacement", "trace_pattern",
]  # fmt: skip

_names = lazily(
    __name__,
    {
        "apply": "apply_passes", "aten": "AtenDialect", "backend": "dynamo_backend",
        "bisection": "Bisection Culprit bisect", "buckets": "bucket_for bucket_ladder",
        "captured_calls": "CaptureReport captures", "served_models": "FrozenReport frozen_models",
        "inductor.hooks": "InductorPass inductor_hooks", "mining": "mine",
        "file_compilation": "compile_file", "options": "CompileOptions",
        "replacement": "register_replacement", "pass_runs": "last_report", "trace": "trace_pattern",
    },
)  # fmt: skip


if not TYPE_CHECKING:

    def __getattr__(name):
        if name == "onnx":
            return importlib.import_module("bringup.compiler.onnx")
        return _names(name)
