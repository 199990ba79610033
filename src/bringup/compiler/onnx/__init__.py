"""ONNX models: files and protos as graphs that passes rewrite, and back. Needs the extra `onnx`.

In reading order: `load` and `from_proto` (an `OnnxModel`: its graph, its functions, `save` and
`to_proto`), `OnnxDialect` (what ONNX's operators are), `ConstantTensor` (what a constant holds),
`Body` (a graph that a node calls), `require_opset`, `run` (by onnx's reference implementation),
`register_library` (passes that drop and merge operators, imported when it is asked for).
"""

try:
    import onnx as _onnx  # noqa: F401
except ImportError as error:
    raise ImportError(
        "bringup.compiler.onnx needs the package onnx: pip install 'bringup[onnx]'"
    ) from error

from bringup._lazy import lazily
from bringup.compiler.onnx.attributes import AttributeReference, Body, ProtoValue
from bringup.compiler.onnx.constants import ConstantTensor
from bringup.compiler.onnx.dialect import OnnxDialect, require_opset
from bringup.compiler.onnx.model import OnnxModel, from_proto, load
from bringup.compiler.onnx.running import run

TYPE_CHECKING = False  # `typing` is imported by none of this
if TYPE_CHECKING:
    from bringup.compiler.onnx.library import register_library

__all__ = [
    "AttributeReference", "Body", "ConstantTensor", "OnnxDialect", "OnnxModel", "ProtoValue",
    "from_proto", "load", "register_library", "require_opset", "run",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, {"library": "register_library"})
