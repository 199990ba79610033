"""Running registered passes over a graph of any kind, in place."""

from __future__ import annotations

import difflib
import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import fx
from torch.export import ExportedProgram

from bringup import ir, passes, settings
from bringup.compiler.aten import AtenDialect, ordinary_torch
from bringup.compiler.export import frozen_program
from bringup.compiler.mirror import Mirror
from bringup.passes import PassDescriptor, PassReport, PassResult, PassStatus, PluginReport

__all__ = ["apply_passes", "extend_last_report", "last_report", "rewrite"]

_LOG = settings.logger("passes")
_LAST = threading.local()
_ONNX_MODEL = "bringup.compiler.onnx.model.OnnxModel"


def apply_passes(
    target: Any, passes: Sequence[str] | None = None, *, options: Mapping[str, object] | None = None
) -> PassReport:
    """Load the pass plugins and run passes over a graph, in place.

    Args:
        target: a `torch.fx.GraphModule` of ATen operators, a `torch.export.ExportedProgram` (its
            weights count as constants, and what is computed from them alone is folded), an
            `onnx.OnnxModel` or an `onnx.ModelProto` (its graph, the graphs that nodes call, and its
            functions), or an `ir.Graph`.
        passes: names of registered passes; None for all of them. The library that bringup ships is
            among them (see `load_pass_plugins`), on graphs of ATen operators alone.
        options: what passes may read with `context.get_option_value`. Of these, `pass_switch`
            switches passes on or off by name (`{"ALL": False, "FuseGelu": True}`) and
            `pass_versions` says which version of a pass runs (`{"FuseGelu": "1.2"}`); `verify`
            runs every rewrite against what it replaces, on random inputs; `dump_passes` names a
            folder for the graphs before and after every pass; `fold` computes once what depends on
            the constants of an ONNX model alone.

    Returns matches, near misses and edits per pass. Raises `PassError` when a pass failed (its
    edits are undone, those of others stay), `ValueError` for an unknown name or an option that
    looks like a misspelt one, `TypeError` for another kind of target or option.
    """
    _check_options(options)
    plugins, selected = load_and_select(passes, options or {})
    if isinstance(target, ir.Graph) and not target.is_bound:
        target.bind(AtenDialect())
    if passes is None and not _is_aten(target):
        selected = _without_library(selected)
    if isinstance(target, ir.Graph):
        return _remember(_run(target, selected, options or {}, plugins))
    if isinstance(target, ExportedProgram):
        with frozen_program(target) as constants:
            return rewrite(
                target.graph_module, selected, plugins, options=options or {}, constants=constants
            )
    if isinstance(target, fx.GraphModule):
        return rewrite(target, selected, plugins, options=options or {})
    if _is_onnx(target):
        from bringup.compiler.onnx.apply import opened

        with opened(target) as model:
            return _rewrite_all(model.graphs, selected, plugins, options or {})
    hint = ": load the file with compiler.onnx.load" if isinstance(target, (str, Path)) else ""
    raise TypeError(
        "apply_passes takes a torch.fx.GraphModule, a torch.export.ExportedProgram, an ONNX model "
        f"or an ir.Graph, got {type(target).__name__}{hint}"
    )


def _is_aten(target: object) -> bool:
    """Whether its operators are torch's."""
    if isinstance(target, ir.Graph):
        return isinstance(target.dialect, AtenDialect)
    return isinstance(target, (fx.GraphModule, ExportedProgram))


def _without_library(selected: Sequence[PassDescriptor]) -> tuple[PassDescriptor, ...]:
    """The passes but those of the library, whose patterns are made of ATen operators."""
    from bringup.kernels.patterns import LIBRARY

    return tuple(item for item in selected if item.pass_class not in LIBRARY)


def _is_onnx(target: object) -> bool:
    """Whether it is an ONNX model; imports onnx for nothing else."""
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(target).__mro__}
    return not names.isdisjoint(("onnx.onnx_ml_pb2.ModelProto", _ONNX_MODEL))


def _rewrite_all(
    graphs: Sequence[ir.Graph],
    selected: Sequence[PassDescriptor],
    plugins: PluginReport,
    options: Mapping[str, object],
) -> PassReport:
    """Run passes over several graphs, each result with the name of its graph."""
    whole: PassReport | None = None
    for graph in graphs:
        report = _run(graph, selected, options, plugins, fold=bool(options.get("fold")))
        if whole is None:
            whole = report
        else:
            whole.results.extend(report.results)
            whole.folded += report.folded
    assert whole is not None, "a model has a graph"
    return _remember(whole)


_OPTIONS = ("dump_passes", "pass_switch", "pass_versions", "verify")


def _check_options(options: object) -> None:
    """Any name may be an option that a pass reads, but not one that is nearly another's."""
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"options must map names to values, got {options!r}")
    for name in options or {}:
        near = difflib.get_close_matches(str(name), _OPTIONS, n=1, cutoff=0.85)
        if near and name not in _OPTIONS:
            raise ValueError(f"there is no option {name!r}; did you mean {near[0]!r}?")


def load_and_select(
    names: Sequence[str] | None, options: Mapping[str, Any]
) -> tuple[PluginReport, tuple[PassDescriptor, ...]]:
    """Bring the registry up to date and choose passes by name, switch and version."""
    plugins = passes.load_pass_plugins()
    for error in plugins.errors:
        _warn_not_loaded(str(error).partition("\n")[0])
    switch, versions = options.get("pass_switch"), options.get("pass_versions")
    return plugins, passes.select_passes(names, versions=versions, switch=switch)


@functools.cache
def _warn_not_loaded(error: str) -> None:
    """Once a process: the report has the whole text every time."""
    _LOG.warning("not loaded: %s", error)


def last_report() -> PassReport | None:
    """The report of the last graph that this thread ran passes over, e.g. in `torch.compile`."""
    return getattr(_LAST, "report", None)


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
) -> PassReport:
    mirror = Mirror(module, foldable=constants)
    try:
        return _run(mirror.graph, selected, options, plugins, mirror, bool(constants))
    finally:
        mirror.finish()


def _merge(report: PassReport, inner: PassReport) -> None:
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
    result.near_misses.extend(other.near_misses)
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
) -> PassReport:
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


def _remember(report: PassReport) -> PassReport:
    _LAST.report = report
    return report
