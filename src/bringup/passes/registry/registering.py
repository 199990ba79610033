"""The decorators that register passes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from bringup import ir
from bringup.passes.definition.base import DecomposePass, FusionBasePass, PatternFusionPass
from bringup.passes.definition.context import PassContext
from bringup.passes.definition.hooks import check_arity
from bringup.passes.definition.stages import PassStage
from bringup.passes.engine import native
from bringup.passes.registry import registry
from bringup.passes.registry.descriptor import ErrorPolicy, PassDescriptor

if TYPE_CHECKING:
    from typing_extensions import Unpack

PassClass = TypeVar("PassClass", bound=type[FusionBasePass])
Custom = TypeVar("Custom", bound=Callable[..., Any])


class PassSettings(TypedDict, total=False):
    """What may be said about a pass besides name and stage, as fields of `PassDescriptor`."""

    priority: int
    version: str
    requires: Iterable[str]
    after: Iterable[str]
    max_rewrites: int | None
    repeat_until_stable: bool
    on_error: str


def register_fusion_pass(
    *, name: str, stage: PassStage, **settings: Unpack[PassSettings]
) -> Callable[[PassClass], PassClass]:
    """Return a decorator that registers a `FusionBasePass` or `PatternFusionPass` under a name.

    Args:
        name, stage: what it is called and when it runs.
        settings: see `PassSettings`: priority, version, requires, after, max_rewrites,
            repeat_until_stable, on_error.

    Raises `ValueError` when name and version are taken (the first stays) or a setting has a value
    it cannot take, and `TypeError` for another kind of class or an unknown setting.

    Examples:
        >>> from bringup import passes
        >>> @passes.register_fusion_pass(name="UseExpm1", stage=passes.PassStage.AFTER_INFER_SHAPE)
        ... class UseExpm1(passes.PatternFusionPass):
        ...     @passes.pattern
        ...     def exp_minus_one(self, inputs):
        ...         op = inputs[0].builder.op
        ...         return op("aten::sub", op("aten::exp", inputs[0]), 1)
        ...
        ...     def replacement(self, inputs):
        ...         return inputs[0].builder.op("aten::expm1", inputs[0])
        >>> passes.unregister_pass("UseExpm1")
    """
    make = _template(name, stage, settings)

    def register(cls: PassClass) -> PassClass:
        _check_class(cls, FusionBasePass)
        if issubclass(cls, DecomposePass):
            raise TypeError(f"{cls.__qualname__} is a DecomposePass: use register_decompose_pass")
        kind = "pattern_fusion" if issubclass(cls, PatternFusionPass) else "fusion_base"
        registry.add(make(cls, kind))
        return cls

    return register


def register_in_order(
    library: Sequence[type[FusionBasePass]],
    names: Sequence[str] | None,
    *,
    prefix: str,
    owner: str,
    on_error: ErrorPolicy = ErrorPolicy.FAIL,
) -> tuple[str, ...]:
    """Register classes of a library (None: all) to run in its order; return their registered names.

    They come behind passes with the default priority: those of users would find nothing left. A
    name is `prefix` and the class's; errors call the library `owner`. Raises `ValueError` for a
    name that the library does not have, or that another pass has taken.
    """
    known = [item.__name__ for item in library]
    for name in known if names is None else names:
        if name not in known:
            raise ValueError(f"{owner} has no {name!r}; it has {known}")
    registered = []
    for number, item in enumerate(library):
        if names is None or item.__name__ in names:
            name = f"{prefix}{item.__name__}"
            stage = PassStage.AFTER_INFER_SHAPE
            settings = PassSettings(priority=-1 - number, on_error=on_error)
            register_fusion_pass(name=name, stage=stage, **settings)(item)
            registered.append(name)
    return tuple(registered)


def register_decompose_pass(
    *, name: str, stage: PassStage, op_types: Iterable[str], **settings: Unpack[PassSettings]
) -> Callable[[PassClass], PassClass]:
    """Return a decorator that registers a `DecomposePass` for operators of some types.

    Args:
        name, stage: what it is called and when it runs.
        op_types: one or more, `aten::gelu` or with an overload `aten::add.Tensor`.
        settings: as in `register_fusion_pass`.

    Raises:
        ValueError: name and version are taken, or `op_types` is empty.
        TypeError: another kind of class, or `op_types` is not a sequence of non-empty strings.
    """
    make = _template(name, stage, settings)
    types = _names("op_types", op_types, f"pass {name!r}: ")
    if not types:
        raise ValueError(f"pass {name!r}: op_types is empty; name at least one operator type")

    def register(cls: PassClass) -> PassClass:
        _check_class(cls, DecomposePass)
        registry.add(make(cls, "decompose", types))
        cls.op_types = types  # type: ignore[attr-defined]
        return cls

    return register


def register_custom_pass(
    *, name: str, stage: PassStage, **settings: Unpack[PassSettings]
) -> Callable[[Custom], Custom]:
    """Register a plain function `(graph, context)`, or a class with `run(self, graph, context)`.

    Its kind is `legacy_custom`; statuses are those of a `FusionBasePass`. Returns the function or
    class as it is.

    Args:
        name, stage: what it is called and when it runs.
        settings: as in `register_fusion_pass`.

    Raises:
        ValueError: name and version are taken, or a setting has a value it cannot take.
        TypeError: it cannot be called in this form, or a setting is unknown.
    """
    make = _template(name, stage, settings)

    def register(custom: Custom) -> Custom:
        registry.add(make(_as_pass_class(custom), "legacy_custom"))
        return custom

    return register


def _as_pass_class(custom: Any) -> type[FusionBasePass]:
    if isinstance(custom, type):
        if issubclass(custom, (PatternFusionPass, DecomposePass)):
            raise TypeError(
                f"{custom.__qualname__} is driven by its hooks: use register_fusion_pass or "
                "register_decompose_pass"
            )
        if issubclass(custom, FusionBasePass):
            return custom
        if not callable(getattr(custom, "run", None)):
            raise TypeError(f"{custom.__qualname__} has no method run(graph, context)")
        check_arity(custom, "run", ("graph", "context"))
        made: Callable[[], Any] = custom
        return _wrapper(custom, lambda graph, context: made().run(graph, context))
    if not callable(custom):
        raise TypeError(f"expected a function (graph, context) or a class, got {custom!r}")
    _check_function(custom)
    return _wrapper(custom, custom)


def _check_function(function: Callable[..., Any]) -> None:
    signature = inspect.signature(function)
    try:
        signature.bind("graph", "context")
    except TypeError:
        name = getattr(function, "__qualname__", repr(function))
        raise TypeError(f"{name} must take (graph, context), got {signature}") from None


def _wrapper(custom: Any, call: Callable[[Any, Any], Any]) -> type[FusionBasePass]:
    def run(self: FusionBasePass, graph: ir.Graph, context: PassContext) -> Any:
        return call(graph, context)

    name = getattr(custom, "__name__", type(custom).__name__)
    return type(
        name,
        (FusionBasePass,),
        {
            "run": run,
            "__module__": custom.__module__,
            "__qualname__": getattr(custom, "__qualname__", name),
            "__doc__": custom.__doc__,
        },
    )


def _template(name: str, stage: PassStage, settings: PassSettings) -> Callable[..., PassDescriptor]:
    """Check what does not depend on the class; the rest of the descriptor comes with it."""
    if not isinstance(name, str) or not name:
        raise TypeError(f"a pass's name must be a non-empty string, got {name!r}")
    if "@" in name:
        raise ValueError(f"a pass's name must not contain '@', got {name!r}")
    if name == "ALL":
        raise ValueError("a pass must not be named 'ALL': in switches that stands for all passes")
    stage = _stage(stage)
    checked = _checked_settings(name, settings)

    def make(
        cls: type[FusionBasePass], kind: str, op_types: tuple[str, ...] = ()
    ) -> PassDescriptor:
        return PassDescriptor(
            pass_name=name,
            kind=kind,
            stage=stage,
            module_name=cls.__module__,
            class_qualname=cls.__qualname__,
            op_types=op_types,
            pass_class=cls,
            **checked,
        )

    return make


def _checked_settings(name: str, given: PassSettings) -> dict[str, Any]:
    known: dict[str, Any] = {
        "priority": 0, "version": "1", "requires": (), "after": (), "max_rewrites": None,
        "repeat_until_stable": False, "on_error": ErrorPolicy.FAIL,
    }  # fmt: skip
    unknown = sorted(given.keys() - known.keys())
    if unknown:
        raise TypeError(f"pass {name!r} has no setting {unknown[0]!r}; there are {list(known)}")
    settings = {**known, **given}
    where = f"pass {name!r}: "
    for field, kind in (("priority", int), ("version", str), ("repeat_until_stable", bool)):
        if not isinstance(settings[field], kind):
            raise TypeError(f"{where}{field} must be {kind.__name__}, got {settings[field]!r}")
    native.version_of(settings["version"])
    for field in ("requires", "after"):
        settings[field] = _names(field, settings[field], where)
        if name in settings[field]:
            raise ValueError(f"{where}it cannot stand in its own {field}")
    limit = settings["max_rewrites"]
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ValueError(f"{where}max_rewrites must be a number above 0 or None, got {limit!r}")
    try:
        settings["on_error"] = ErrorPolicy(settings["on_error"])
    except ValueError:
        policies = [policy.value for policy in ErrorPolicy]
        raise ValueError(
            f"{where}on_error must be one of {policies}, got {settings['on_error']!r}"
        ) from None
    return settings


def _names(what: str, given: Iterable[str], where: str) -> tuple[str, ...]:
    if isinstance(given, str):
        raise TypeError(f"{where}{what} must be a sequence of strings, got the string {given!r}")
    names = tuple(given)
    for name in names:
        if not isinstance(name, str) or not name:
            raise TypeError(f"{where}{what} must be non-empty strings, got {name!r}")
    return names


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
