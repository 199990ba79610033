"""Every test starts and ends with an empty registry."""

from tests.unit.passes.support import empty_registry

__all__ = ["empty_registry"]
