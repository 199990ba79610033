"""The patterns that a pass written in Python looks for."""

from __future__ import annotations

from bringup import ir
from bringup.errors import PassError
from bringup.passes.definition.base import PatternFusionPass, pattern_methods
from bringup.passes.definition.expressions import configure, pattern_of
from bringup.passes.patterns.pattern import Pattern


def patterns_of(graph: ir.Graph, instance: PatternFusionPass) -> list[Pattern]:
    """Return an instance's patterns for `graph`. Raises `PassError` for none or a released one."""
    methods = pattern_methods(type(instance))
    if methods:
        return [pattern_of(instance, name, graph.dialect) for name in methods]
    given = instance.patterns()
    listed = given if isinstance(given, (tuple, list)) else [given]
    patterns = [item if isinstance(item, Pattern) else Pattern(item) for item in listed]  # type: ignore[arg-type]
    if not patterns:
        raise PassError(f"{type(instance).__qualname__}.patterns() returned no pattern")
    for pattern in patterns:
        if not pattern.is_valid():
            raise PassError(
                f"{type(instance).__qualname__}.patterns() returned the pattern "
                f"{pattern.name!r}, which was released"
            )
        configure(pattern, graph.dialect, instance.matcher_config)
    return patterns
