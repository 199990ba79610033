"""Every test starts and ends with an empty registry; models are written in ONNX's text form."""

from tests.unit.passes.support import empty_registry, traced

__all__ = ["empty_registry", "traced"]
