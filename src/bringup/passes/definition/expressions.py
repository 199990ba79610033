"""The patterns that a pass states as `@pattern` expressions, each evaluated once where it can be.

An expression that does not use `self` states the same pattern in every session: it is kept with
the class, checked and compiled. One that does is evaluated for every graph.
"""

from __future__ import annotations

import dis
import inspect
import threading
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

from bringup import ir
from bringup.passes.patterns.convert import as_graph
from bringup.passes.patterns.pattern import Pattern, PatternInputs

if TYPE_CHECKING:
    from bringup.passes.patterns.matcher_config import PatternMatcherConfig

_Key: TypeAlias = tuple[object, ...]

_LOCK = threading.Lock()
_KEPT: WeakKeyDictionary[type, dict[_Key, Pattern]] = WeakKeyDictionary()


def pattern_of(instance: Any, name: str, dialect: ir.Dialect | None) -> Pattern:
    """Return the pattern that method `name` states. Raises what it does, or `TypeError`."""
    method, config = inspect.getattr_static(type(instance), name), instance.matcher_config
    key = (name, method, config, type(dialect), None if dialect is None else dialect.name)
    with _LOCK:
        kept = _KEPT.setdefault(type(instance), {})
        if key in kept:
            return kept[key]
    lasting = None if dialect is None else dialect.detached()
    if uses_instance(method) or (lasting is None and dialect is not None):
        return _evaluate(instance, name, dialect)
    made = _evaluate(instance, name, lasting)
    with _LOCK:
        return kept.setdefault(key, made)


def configure(
    pattern: Pattern, dialect: ir.Dialect | None, config: PatternMatcherConfig | None
) -> None:
    """Look a pattern's operators up, and compare as the pass asks for."""
    if dialect is not None:
        pattern.bind(dialect)
    if config is not None:
        pattern.attributes = config.ir_attr_match
        pattern.constant_values = config.const_value_match


def uses_instance(method: object) -> bool:
    """Return whether a method may do anything with its `self`; True where that is unknown."""
    if not isinstance(method, FunctionType) or method.__code__.co_argcount == 0:
        return True
    code = method.__code__
    instance = code.co_varnames[0]
    if instance in code.co_cellvars or "__class__" in code.co_freevars:  # the latter: super()
        return True
    operands = (item.argval for item in dis.get_instructions(code))  # of Python 3.13 also two
    return any(instance in (one if isinstance(one, tuple) else (one,)) for one in operands)


def _evaluate(instance: Any, name: str, dialect: ir.Dialect | None) -> Pattern:
    with ir.use_dialect(dialect):
        inputs = PatternInputs(ir.GraphBuilder(name))
        returned = getattr(instance, name)(inputs)
    where = f"{type(instance).__qualname__}.{name}"
    listed = returned if isinstance(returned, (tuple, list)) else (returned,)
    if any(isinstance(item, ir.Graph) for item in listed):
        kind = "a Graph" if listed is not returned else "a list of Graphs"
        raise TypeError(
            f"@pattern {where} must return the holder(s) of its outputs, got {kind}; use "
            "patterns(): a @pattern method makes a single pattern only"
        )
    graph = as_graph(returned, where)
    pattern = Pattern(graph, name)
    for holder in inputs.made():
        pattern.capture_tensor(holder)
    for value in graph.outputs:
        pattern.capture_tensor(value)
    configure(pattern, dialect, instance.matcher_config)
    return pattern
