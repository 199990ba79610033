"""What repeats in a torch graph."""

from __future__ import annotations

from typing import Any

from torch import fx
from torch.export import ExportedProgram

from bringup import ir, passes
from bringup.compiler.mirror import Mirror


def mine(target: Any, **settings: Any) -> passes.Mined:
    """Return connected parts that repeat, by operator types and structure; see `passes.mine`.

    Args:
        target: a `torch.fx.GraphModule` of ATen operators, a `torch.export.ExportedProgram`, or an
            `ir.Graph`; it is not changed.
        settings: those of `passes.mine`.

    Raises `TypeError` for another kind of target or an unknown setting, `ValueError` for a number
    that is out of bounds.
    """
    if isinstance(target, ir.Graph):
        return passes.mine(target, **settings)
    module = target.graph_module if isinstance(target, ExportedProgram) else target
    if not isinstance(module, fx.GraphModule):
        raise TypeError(
            "mine takes a torch.fx.GraphModule, a torch.export.ExportedProgram or an ir.Graph, got "
            f"{type(target).__name__}"
        )
    mirror = Mirror(module)
    try:
        return passes.mine(mirror.graph, **settings)
    finally:
        mirror.finish()
