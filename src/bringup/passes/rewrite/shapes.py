"""Shapes of a replacement before it stands anywhere."""

from __future__ import annotations

from bringup import ir
from bringup.errors import PassError
from bringup.passes.patterns.match import MatchResult
from bringup.passes.rewrite.subgraph import SubgraphBoundary


def infer_shape(replacement: ir.Graph, source: MatchResult | ir.Node | SubgraphBoundary) -> None:
    """Give every value of a replacement its shape and dtype, from what its inputs will be.

    Args:
        replacement: changed in place.
        source: what it will replace: a match, a node (its inputs each once), or a boundary.

    Raises `TypeError` for other kinds (and then changes nothing) and `PassError` when the
    replacement is empty, has more inputs than its source, an operator refuses its inputs, or no
    dialect knows shapes: `ir.aten_schemas()` knows schemas only.
    """
    if not isinstance(replacement, ir.Graph):
        raise TypeError(f"infer_shape takes an ir.Graph, got {type(replacement).__name__}")
    inputs = _inputs_of(source)
    if not replacement.outputs:
        raise PassError(f"the replacement {replacement.name!r} is empty: it has no output")
    if len(replacement.inputs) > len(inputs):
        raise PassError(
            f"the replacement {replacement.name!r} has {len(replacement.inputs)} inputs, its "
            f"source has {len(inputs)}"
        )
    present = [value for value in inputs if value is not None]
    if not replacement.is_bound and present and present[0].node.graph.dialect is not None:
        replacement.bind(present[0].node.graph.dialect)
    if not replacement.is_bound:
        dialect = replacement.dialect
        known = "it has no dialect" if dialect is None else f"{dialect.name!r} knows none"
        raise PassError(
            f"the shapes of the replacement {replacement.name!r} cannot be inferred: {known}; "
            "run the pass on a graph that is bound to a dialect with shape inference "
            "(compiler.apply_passes binds one)"
        )
    metas = {
        value: source_value.meta
        for value, source_value in zip(replacement.inputs, inputs, strict=False)
        if source_value is not None
    }
    ir.infer_shapes(replacement, metas)


def _inputs_of(source: object) -> tuple[ir.Value | None, ...]:
    if isinstance(source, (MatchResult, SubgraphBoundary)):
        return source.inputs
    if isinstance(source, ir.Node):
        return tuple(dict.fromkeys(source.inputs))
    raise TypeError(
        "infer_shape takes a MatchResult, an ir.Node or a SubgraphBoundary as its source, got "
        f"{type(source).__name__}"
    )
