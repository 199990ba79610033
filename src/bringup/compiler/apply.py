"""Running registered passes over a graph of any kind, in place."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx
from torch.export import ExportedProgram

from bringup import ir, passes
from bringup.compiler.aten import AtenDialect, ordinary_torch
from bringup.compiler.mirror import Mirror
from bringup.passes import PassDescriptor, PluginReport, Report

__all__ = ["apply_passes", "last_report", "rewrite"]

_LAST = threading.local()


def apply_passes(
    target: Any, passes: Sequence[str] | None = None, *, options: Mapping[str, object] | None = None
) -> Report:
    """Load the pass plugins and run passes over a graph, in place.

    Arguments:
        target: a `torch.fx.GraphModule` of ATen operators, a `torch.export.ExportedProgram`, or an
            `ir.Graph`.
        passes: names of registered passes; None for all of them.
        options: what passes may read with `context.get_option_value`.

    Returns matches, near misses and edits per pass. Raises `PassError` when a pass failed (its
    edits are undone, those of others stay), `ValueError` for an unknown name, `TypeError` for
    another kind of target.
    """
    plugins, selected = load_and_select(passes)
    if isinstance(target, ir.Graph):
        if target.dialect is None:
            target.bind(AtenDialect())
        return _remember(_run(target, selected, options or {}, plugins))
    if isinstance(target, ExportedProgram):
        report = rewrite(target.graph_module, selected, plugins, options=options or {})
        _rename_outputs(target)
        return report
    if isinstance(target, fx.GraphModule):
        return rewrite(target, selected, plugins, options=options or {})
    raise TypeError(
        "apply_passes takes a torch.fx.GraphModule, a torch.export.ExportedProgram or an ir.Graph, "
        f"got {type(target).__name__}"
    )


def load_and_select(names: Sequence[str] | None) -> tuple[PluginReport, tuple[PassDescriptor, ...]]:
    """Bring the registry up to date and choose passes by name."""
    plugins = passes.load_pass_plugins()
    return plugins, passes.select_passes(names)


def last_report() -> Report | None:
    """The report of the last graph that this thread ran passes over, e.g. in `torch.compile`."""
    return getattr(_LAST, "report", None)


def rewrite(
    module: Any,
    selected: Sequence[PassDescriptor],
    plugins: PluginReport,
    *,
    options: Mapping[str, object],
    constants: frozenset[str] = frozenset(),
) -> Report:
    """Run selected passes over an FX graph module, in place; recompile it once if anything changed.

    `constants` names attributes of the module whose data may be folded into the graph.
    """
    mirror = Mirror(module, foldable=constants)
    try:
        return _remember(_run(mirror.graph, selected, options, plugins, mirror, bool(constants)))
    finally:
        mirror.finish()


def _run(
    graph: ir.Graph,
    selected: Sequence[PassDescriptor],
    options: Mapping[str, object],
    plugins: PluginReport,
    mirror: Mirror | None = None,
    fold: bool = False,
) -> Report:
    try:
        with ordinary_torch():
            report = passes.run_passes(
                graph,
                selected,
                options=options,
                commit=mirror.commit if mirror is not None else None,
                fold=fold,
            )
    except passes.PassError as error:
        error.report.plugin_errors = list(plugins.errors)  # type: ignore[attr-defined]
        _remember(error.report)  # type: ignore[attr-defined]
        raise
    report.plugin_errors = list(plugins.errors)
    return report


def _remember(report: Report) -> Report:
    _LAST.report = report
    return report


def _rename_outputs(program: Any) -> None:
    """Let the signature name the outputs as the rewritten graph does."""
    results = program.graph_module.graph.output_node().args[0]
    for spec, result in zip(program.graph_signature.output_specs, results, strict=True):
        if isinstance(result, fx.Node) and getattr(spec.arg, "name", None) is not None:
            spec.arg.name = result.name
