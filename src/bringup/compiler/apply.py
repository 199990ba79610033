"""Running registered passes over a graph of any kind, in place."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import fx
from torch.export import ExportedProgram

from bringup import ir, passes
from bringup.compiler.aten import AtenDialect, ordinary_torch
from bringup.compiler.export import frozen_program
from bringup.compiler.mirror import Mirror
from bringup.passes import PassDescriptor, PassResult, PassStatus, PluginReport, Report

__all__ = ["apply_passes", "extend_last_report", "last_report", "rewrite"]

_LAST = threading.local()


def apply_passes(
    target: Any, passes: Sequence[str] | None = None, *, options: Mapping[str, object] | None = None
) -> Report:
    """Load the pass plugins and run passes over a graph, in place.

    Arguments:
        target: a `torch.fx.GraphModule` of ATen operators, a `torch.export.ExportedProgram` (its
            weights count as constants, and what is computed from them alone is folded), or an
            `ir.Graph`.
        passes: names of registered passes; None for all of them.
        options: what passes may read with `context.get_option_value`. Of these, `pass_switch`
            switches passes on or off by name (`{"ALL": False, "FuseGelu": True}`) and
            `pass_versions` says which version of a pass runs (`{"FuseGelu": "1.2"}`); `verify`
            runs every rewrite against what it replaces, on random inputs; `dump_passes` names a
            folder for the graphs before and after every pass.

    Returns matches, near misses and edits per pass. Raises `PassError` when a pass failed (its
    edits are undone, those of others stay), `ValueError` for an unknown name, `TypeError` for
    another kind of target.
    """
    plugins, selected = load_and_select(passes, options or {})
    if isinstance(target, ir.Graph):
        if not target.is_bound:
            target.bind(AtenDialect())
        return _remember(_run(target, selected, options or {}, plugins))
    if isinstance(target, ExportedProgram):
        with frozen_program(target) as constants:
            return rewrite(
                target.graph_module, selected, plugins, options=options or {}, constants=constants
            )
    if isinstance(target, fx.GraphModule):
        return rewrite(target, selected, plugins, options=options or {})
    raise TypeError(
        "apply_passes takes a torch.fx.GraphModule, a torch.export.ExportedProgram or an ir.Graph, "
        f"got {type(target).__name__}"
    )


def load_and_select(
    names: Sequence[str] | None, options: Mapping[str, Any]
) -> tuple[PluginReport, tuple[PassDescriptor, ...]]:
    """Bring the registry up to date and choose passes by name, switch and version."""
    plugins = passes.load_pass_plugins()
    switch, versions = options.get("pass_switch"), options.get("pass_versions")
    return plugins, passes.select_passes(names, versions=versions, switch=switch)


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

    Graphs inside of it (branches and bodies of higher-order operators) are rewritten first, each
    as a graph of its own. `constants` names attributes of the module whose data may be folded into
    the graph.
    """
    inner = [_rewrite_one(body, selected, plugins, options) for body in _bodies(module)]
    report = _rewrite_one(module, selected, plugins, options, constants)
    for other in inner:
        _merge(report, other)
    return _remember(report)


def _bodies(module: Any) -> list[Any]:
    """The graphs that higher-order operators of a graph call, innermost first, each once."""
    found: dict[Any, None] = {}
    for node in module.graph.find_nodes(op="get_attr"):
        body = getattr(module, node.target, None)
        if isinstance(body, fx.GraphModule):
            found.update(dict.fromkeys([*_bodies(body), body]))
    return list(found)


def _rewrite_one(
    module: Any,
    selected: Sequence[PassDescriptor],
    plugins: PluginReport,
    options: Mapping[str, object],
    constants: frozenset[str] = frozenset(),
) -> Report:
    mirror = Mirror(module, foldable=constants)
    try:
        return _run(mirror.graph, selected, options, plugins, mirror, bool(constants))
    finally:
        mirror.finish()


def _merge(report: Report, inner: Report) -> None:
    """Add what passes did in an inner graph to what they did in the outer one."""
    for result, other in zip(report.results, inner.results, strict=True):
        _add(result, other)
    report.folded += inner.folded


def _add(result: PassResult, other: PassResult) -> None:
    result.matches += other.matches
    result.refused += other.refused
    result.edits += other.edits
    result.seconds += other.seconds
    result.failures += other.failures
    result.verified += other.verified
    result.unverified.extend(other.unverified)
    if other.status is PassStatus.CHANGED:
        result.status = other.status


@contextmanager
def extend_last_report() -> Iterator[None]:
    """What passes do in this block is added to this thread's last report."""
    before = last_report()
    try:
        yield
    finally:
        after = last_report()
        if before is not None and after is not None and after is not before:
            before.results.extend(after.results)
            _remember(before)


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
