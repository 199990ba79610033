"""Which passes there are."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TypeAlias

from bringup.passes.descriptor import PassDescriptor, version_key
from bringup.passes.stages import PassStage

__all__ = [
    "PassKey",
    "add",
    "clear_registered_passes",
    "collecting",
    "forget",
    "get_registered_pass_by_descriptor_key",
    "get_registered_pass_dicts",
    "get_registered_passes",
    "label",
    "unregister_pass",
]

PassKey: TypeAlias = tuple[str, tuple[int, ...]]
"""A pass's name and its version as numbers."""

_LOCK = threading.Lock()
_PASSES: dict[PassKey, PassDescriptor] = {}
_COLLECTED: ContextVar[list[PassKey] | None] = ContextVar("bringup_collected_passes", default=None)


def get_registered_passes() -> tuple[PassDescriptor, ...]:
    """All registered passes, every version of each, by stage, priority, name, newest first.

    They run in this order, except that `requires` and `after` come first.
    """
    stages = list(PassStage)
    with _LOCK:
        listed = sorted(_PASSES.values(), key=lambda item: version_key(item.version), reverse=True)
    return tuple(
        sorted(listed, key=lambda item: (stages.index(item.stage), -item.priority, item.pass_name))
    )


def get_registered_pass_dicts() -> list[dict[str, object]]:
    """The same as plain values, for JSON."""
    return [descriptor.as_dict() for descriptor in get_registered_passes()]


def get_registered_pass_by_descriptor_key(key: str, version: str | None = None) -> PassDescriptor:
    """The pass with this `descriptor_key`, its newest version unless one is named.

    Raises `KeyError` that lists the keys when there is none.
    """
    found = [item for item in get_registered_passes() if item.descriptor_key == key]
    if version is not None:
        wanted = version_key(version)
        found = [item for item in found if version_key(item.version) == wanted]
    if not found:
        known = [f"{item.descriptor_key} {item.version}" for item in get_registered_passes()]
        asked = key if version is None else f"{key} {version}"
        raise KeyError(f"no pass is registered as {asked!r}; there are {known}")
    return found[0]


def unregister_pass(name: str, version: str | None = None) -> None:
    """Forget a pass, in all versions or in one; `KeyError` when there is none."""
    wanted = None if version is None else version_key(version)
    with _LOCK:
        found = [key for key in _PASSES if key[0] == name and wanted in (None, key[1])]
        if not found:
            asked = name if version is None else f"{name}@{version}"
            known = sorted({key[0] for key in _PASSES})
            raise KeyError(f"no pass named {asked!r} is registered; there are {known}")
        for key in found:
            del _PASSES[key]


def clear_registered_passes() -> None:
    """Forget all passes."""
    with _LOCK:
        _PASSES.clear()


def add(descriptor: PassDescriptor) -> None:
    """Register a pass. The same class of the same file again changes nothing.

    Raises `ValueError` when name and version are taken by another; the first stays.
    """
    digest = descriptor.source_digest or _source_digest(descriptor.pass_class)
    descriptor = dataclasses.replace(descriptor, source_digest=digest)
    key = (descriptor.pass_name, version_key(descriptor.version))
    with _LOCK:
        first = _PASSES.setdefault(key, descriptor)
    if first is descriptor:
        collected = _COLLECTED.get()
        if collected is not None:
            collected.append(key)
    elif first != descriptor or not (
        descriptor.source_digest or first.pass_class is descriptor.pass_class
    ):
        raise ValueError(
            f"a pass named {label(key)!r} is registered already, by "
            f"{first.module_name}.{first.class_qualname}; it stays. Give "
            f"{descriptor.module_name}.{descriptor.class_qualname} another name or version, or "
            "call passes.unregister_pass first"
        )


def label(key: PassKey) -> str:
    """What reports call one version of a pass: its name, with `@version` unless that is 1."""
    name, version = key
    return name if version == (1,) else f"{name}@{'.'.join(map(str, version))}"


def forget(key: PassKey) -> PassDescriptor | None:
    """Forget one version of a pass if it is there, and return it."""
    with _LOCK:
        return _PASSES.pop(key, None)


@contextmanager
def collecting() -> Iterator[list[PassKey]]:
    """Collects what is registered in this block by this thread; an exception takes it back.

    No lock is held meanwhile: the block may import modules that register passes themselves.
    """
    keys: list[PassKey] = []
    token = _COLLECTED.set(keys)
    try:
        yield keys
    except BaseException:
        for key in keys:
            forget(key)
        raise
    finally:
        _COLLECTED.reset(token)


def _source_digest(cls: type) -> str:
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if file is None or not Path(file).is_file():
        return ""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()
