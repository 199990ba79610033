"""Which passes there are, of Python, C and C++: the engine's registry, as Python sees it."""

from __future__ import annotations

import atexit
import dataclasses
import hashlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from bringup.passes.definition.base import DecomposePass, FusionBasePass, PatternFusionPass
from bringup.passes.definition.stages import PassStage
from bringup.passes.engine import PassBatch, PassRegistration, native
from bringup.passes.registry.descriptor import ErrorPolicy, PassDescriptor

_KNOWN: WeakValueDictionary[int, PassDescriptor] = WeakValueDictionary()
"""By the address of the registration, which the descriptor keeps."""
_NOTED: ContextVar[list[PassRegistration] | None] = ContextVar("bringup_noted_passes", default=None)


def get_registered_passes() -> tuple[PassDescriptor, ...]:
    """Return all registered passes, every version of each, by stage, priority, name, newest first.

    They run in this order, except that `requires` and `after` come first.
    """
    return descriptors_of(native.registered_passes())


def get_registered_pass_dicts() -> list[dict[str, object]]:
    """Return the same as plain values, for JSON."""
    return [descriptor.as_dict() for descriptor in get_registered_passes()]


def get_registered_pass_by_descriptor_key(key: str, version: str | None = None) -> PassDescriptor:
    """Return the pass with this `descriptor_key`, its newest version unless one is named.

    Args:
        key: as `PassDescriptor.descriptor_key` has it.
        version: `"1.2"`, or None for the newest.

    Raises:
        KeyError: there is none; lists the keys that there are.
    """
    found = native.find_pass(key, _checked(version))
    if found is None:
        known = [f"{item.descriptor_key} {item.version}" for item in get_registered_passes()]
        asked = key if version is None else f"{key} {version}"
        raise KeyError(f"no pass is registered as {asked!r}; there are {known}")
    return _descriptor_of(found)


def unregister_pass(name: str, version: str | None = None) -> None:
    """Forget a pass.

    Args:
        name: of the pass.
        version: the one to forget; None for all.

    Raises:
        KeyError: there is none; lists the names that there are.
    """
    if not native.remove_passes(name, _checked(version)):
        asked = name if version is None else f"{name}@{version}"
        known = sorted({item.pass_name for item in get_registered_passes()})
        raise KeyError(f"no pass named {asked!r} is registered; there are {known}")


def clear_registered_passes() -> None:
    """Forget all passes. Plugins are loaded again when they are looked for the next time."""
    _CLEARED.append(True)
    native.clear_passes()


_CLEARED: list[bool] = []


def take_cleared() -> bool:
    """Return whether all passes were forgotten since this was asked last."""
    was_cleared = bool(_CLEARED)
    _CLEARED.clear()
    return was_cleared


atexit.register(clear_registered_passes)  # their classes belong to an interpreter that ends


def add(descriptor: PassDescriptor) -> None:
    """Register a pass, once. Raises `ValueError` when another has taken name and version."""
    file = getattr(sys.modules.get(descriptor.pass_class.__module__), "__file__", None)
    digest = ""
    if file is not None and Path(file).is_file():
        digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    registration = PassRegistration(dataclasses.replace(descriptor, source_digest=digest))
    native.register_pass(registration)


def note(registrations: Iterable[PassRegistration]) -> None:
    """Let `collecting` list passes that a library registered in its block."""
    noted = _NOTED.get()
    if noted is not None:
        noted.extend(registrations)


@contextmanager
def collecting() -> Iterator[list[PassRegistration]]:
    """Collect what this thread registers in this block; it is visible at its end, all or nothing.

    No lock is held: the block may import modules that register passes themselves.
    """
    noted: list[PassRegistration] = []
    token = _NOTED.set(noted)
    try:
        with PassBatch() as batch:
            yield noted
            noted.extend(batch.commit())
    finally:
        _NOTED.reset(token)


def descriptors_of(registrations: Iterable[PassRegistration]) -> tuple[PassDescriptor, ...]:
    """Return what Python knows about registered passes."""
    return tuple(_descriptor_of(item) for item in registrations)


def _descriptor_of(registration: PassRegistration) -> PassDescriptor:
    known = _KNOWN.get(registration.address)
    if known is None:
        known = _KNOWN.setdefault(registration.address, _made(registration))
    return known


def _made(registration: PassRegistration) -> PassDescriptor:
    facts = registration.describe()
    facts["stage"] = PassStage(facts["stage"])
    facts["on_error"] = ErrorPolicy(facts["on_error"])
    return PassDescriptor(
        **facts,
        pass_class=registration.pass_class or _library_class(facts),
        registration=registration,
    )


_BASES: dict[str, type[FusionBasePass]] = {
    "fusion_base": FusionBasePass,
    "pattern_fusion": PatternFusionPass,
    "decompose": DecomposePass,
}


def _library_class(facts: dict[str, Any]) -> type[FusionBasePass]:
    """Return the class that stands for a library's pass in its descriptor."""
    members = {
        "__module__": facts["module_name"],
        "__qualname__": facts["class_qualname"],
        "__doc__": f"A pass of {facts['module_name']}.",
        "op_types": facts["op_types"],
    }
    return type(facts["class_qualname"], (_BASES[facts["kind"]],), members)


def _checked(version: str | None) -> str:
    """Return a version as the registry takes it; `ValueError` when it is none."""
    if version is None:
        return ""
    native.version_of(version)
    return version
