"""Which passes there are."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from bringup.passes.base import DecomposePass, FusionBasePass, PassStage, PatternFusionPass

__all__ = [
    "PassDescriptor",
    "clear_registered_passes",
    "get_registered_passes",
    "register_decompose_pass",
    "register_fusion_pass",
    "unregister_pass",
]

PassClass = TypeVar("PassClass", bound=type[FusionBasePass])


@dataclass(frozen=True)
class PassDescriptor:
    """One registered pass.

    Attributes:
        pass_name: unique among the registered passes.
        kind: `fusion_base`, `pattern_fusion` or `decompose`.
        stage: when it runs.
        priority: within a stage the higher one runs first; equal ones in the order of their names.
        module_name, class_qualname: where its class is defined.
        op_types: what a decompose pass replaces.
        source_digest: of the file that defines it, "" when there is none; part of what a compile
            depends on.
    """

    pass_name: str
    kind: str
    stage: PassStage
    priority: int
    module_name: str
    class_qualname: str
    op_types: tuple[str, ...] = ()
    source_digest: str = ""
    pass_class: type[FusionBasePass] = field(default=FusionBasePass, compare=False, repr=False)

    @property
    def descriptor_key(self) -> str:
        """Identity: module, class and name."""
        return f"{self.module_name}:{self.class_qualname}:{self.pass_name}"


_LOCK = threading.RLock()
_PASSES: dict[str, PassDescriptor] = {}


def register_fusion_pass(
    *, name: str, stage: PassStage, priority: int = 0
) -> Callable[[PassClass], PassClass]:
    """Register a `FusionBasePass` or `PatternFusionPass` under a name.

    Raises `ValueError` when the name is taken (the first stays) and `TypeError` for another kind of
    class.
    """
    _check_name(name)
    stage = _stage(stage)

    def register(cls: PassClass) -> PassClass:
        _check_class(cls, FusionBasePass)
        if issubclass(cls, DecomposePass):
            raise TypeError(f"{cls.__qualname__} is a DecomposePass: use register_decompose_pass")
        kind = "pattern_fusion" if issubclass(cls, PatternFusionPass) else "fusion_base"
        _add(_descriptor(cls, name, kind, stage, priority))
        return cls

    return register


def register_decompose_pass(
    *, name: str, stage: PassStage, op_types: Iterable[str], priority: int = 0
) -> Callable[[PassClass], PassClass]:
    """Register a `DecomposePass` for operators of some types (`aten::gelu`, `aten::add.Tensor`).

    Raises `ValueError` when the name is taken or `op_types` is empty, `TypeError` for another kind
    of class or when `op_types` is not a sequence of strings.
    """
    _check_name(name)
    stage = _stage(stage)
    if isinstance(op_types, str):
        raise TypeError(
            f"op_types must be a sequence of operator types, got the string {op_types!r}"
        )
    types = tuple(op_types)
    if not types:
        raise ValueError(f"pass {name!r}: op_types is empty; name at least one operator type")
    for op_type in types:
        if not isinstance(op_type, str) or not op_type:
            raise TypeError(f"pass {name!r}: op_types must be non-empty strings, got {op_type!r}")

    def register(cls: PassClass) -> PassClass:
        _check_class(cls, DecomposePass)
        _add(_descriptor(cls, name, "decompose", stage, priority, types))
        cls.op_types = types  # type: ignore[attr-defined]
        return cls

    return register


def get_registered_passes() -> tuple[PassDescriptor, ...]:
    """All registered passes in the order in which they run: by stage, priority, name."""
    stages = list(PassStage)
    with _LOCK:
        return tuple(
            sorted(
                _PASSES.values(),
                key=lambda item: (stages.index(item.stage), -item.priority, item.pass_name),
            )
        )


def unregister_pass(name: str) -> None:
    """Forget a pass; `KeyError` when there is none of this name."""
    with _LOCK:
        if name not in _PASSES:
            raise KeyError(f"no pass named {name!r} is registered; there are {sorted(_PASSES)}")
        del _PASSES[name]


def clear_registered_passes() -> None:
    """Forget all passes."""
    with _LOCK:
        _PASSES.clear()


def forget(name: str) -> None:
    """Forget a pass if there is one of this name."""
    with _LOCK:
        _PASSES.pop(name, None)


@contextmanager
def locked() -> Iterator[None]:
    """No other thread registers passes or loads plugins in this block."""
    with _LOCK:
        yield


@contextmanager
def whole_or_nothing() -> Iterator[list[str]]:
    """Collects the names registered in this block; an exception takes them all back."""
    with _LOCK:
        before = dict(_PASSES)
        names: list[str] = []
        try:
            yield names
        except BaseException:
            _PASSES.clear()
            _PASSES.update(before)
            raise
        names.extend(name for name in _PASSES if name not in before)


def _descriptor(
    cls: type[FusionBasePass],
    name: str,
    kind: str,
    stage: PassStage,
    priority: int,
    op_types: tuple[str, ...] = (),
) -> PassDescriptor:
    return PassDescriptor(
        pass_name=name,
        kind=kind,
        stage=stage,
        priority=priority,
        module_name=cls.__module__,
        class_qualname=cls.__qualname__,
        op_types=op_types,
        source_digest=_source_digest(cls),
        pass_class=cls,
    )


def _add(descriptor: PassDescriptor) -> None:
    with _LOCK:
        first = _PASSES.get(descriptor.pass_name)
        if first is None:
            _PASSES[descriptor.pass_name] = descriptor
        elif first != descriptor or not descriptor.source_digest:
            raise ValueError(
                f"a pass named {descriptor.pass_name!r} is registered already, by "
                f"{first.module_name}.{first.class_qualname}; it stays. Give "
                f"{descriptor.module_name}.{descriptor.class_qualname} another name, or call "
                "passes.unregister_pass first"
            )


def _source_digest(cls: type) -> str:
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if file is None or not Path(file).is_file():
        return ""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not name:
        raise TypeError(f"a pass's name must be a non-empty string, got {name!r}")


def _stage(stage: PassStage) -> PassStage:
    try:
        return PassStage(stage)
    except ValueError:
        raise ValueError(
            f"there is no stage {stage!r}; stages are {[item.name for item in PassStage]}"
        ) from None


def _check_class(cls: object, base: type) -> None:
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise TypeError(f"expected a subclass of passes.{base.__name__}, got {cls!r}")
