"""Running passes over FX graph modules, in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx

from bringup.compiler.mirror import Mirror
from bringup.compiler.pass_runs import merge, remember, run
from bringup.passes import PassDescriptor, PassReport, PluginReport


def rewrite(
    module: Any,
    selected: Sequence[PassDescriptor],
    plugins: PluginReport,
    *,
    options: Mapping[str, object],
    constants: frozenset[str] = frozenset(),
) -> PassReport:
    """Run selected passes over an FX graph module, in place; recompile it once if anything changed.

    Graphs inside of it (branches and bodies of higher-order operators) are rewritten first, each
    as a graph of its own. `constants` names attributes of the module whose data may be folded into
    the graph.
    """
    reports = []
    for one in (*bodies(module), module):
        foldable = constants if one is module else frozenset()
        mirror = Mirror(one, foldable=foldable)
        try:
            graph, commit = mirror.graph, mirror.commit
            reports.append(run(graph, selected, options, plugins, commit, bool(foldable)))
        finally:
            mirror.finish()
    *inner, report = reports
    for other in inner:
        merge(report, other)
    return remember(report)


def copied(module: Any) -> Any:
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    graph.output_node().meta.update(module.graph.output_node().meta)
    return fx.GraphModule(module, graph)


def bodies(module: Any) -> list[Any]:
    """Return the graph modules that higher-order operators call, innermost first, each once."""
    found: dict[Any, None] = {}
    for node in module.graph.find_nodes(op="get_attr"):
        body = getattr(module, node.target, None)
        if isinstance(body, fx.GraphModule):
            found.update(dict.fromkeys([*bodies(body), body]))
    return list(found)
