"""Every test starts and ends with an empty registry; `traced` makes FX graphs of ATen operators."""

from tests.unit.passes.support import empty_registry, traced

__all__ = ["empty_registry", "traced"]
