"""Every test starts and ends with an empty registry; models are written in ONNX's text form."""

from tests.unit.passes.support import empty_registry

__all__ = ["empty_registry"]
