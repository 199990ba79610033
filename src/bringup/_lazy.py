"""Packages that import what they offer when it is first asked for."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing `typing` for it costs as much as everything else here
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazily(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """Return the `__getattr__` of a package whose names come from these modules: by a module's
    name, from the package or full, what it gives. What is patched stays patched.
    """
    owners = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> object:
        if name not in owners:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        owner = owners[name]
        module = owner if owner.startswith("bringup.") else f"{package}.{owner}"
        __import__(module)
        found: object = getattr(sys.modules[module], name)
        setattr(sys.modules[package], name, found)
        return found

    return get
