"""Choosing passes, running them over one graph, and this thread's last report. No torch in it."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from bringup import ir, passes, settings
from bringup.errors import first_line
from bringup.passes import PassDescriptor, PassReport, PassResult, PassStatus, PluginReport

_LOG = settings.logger("passes")
_LAST = threading.local()
LIBRARY = "bringup.kernels.patterns."


def load_and_select(
    names: Sequence[str] | None, options: Mapping[str, Any], *, library: bool = True
) -> tuple[PluginReport, tuple[PassDescriptor, ...]]:
    """Bring the registry up to date, with the shipped passes for `library`, and choose passes."""
    named = any(name.startswith("Library") for name in names or ())
    plugins = passes.load_pass_plugins(library=library or named)
    for error in plugins.errors:
        _warn_not_loaded(first_line(error))
    switch, versions = options.get("pass_switch"), options.get("pass_versions")
    return plugins, passes.select_passes(names, versions=versions, switch=switch)


def without_library(selected: Sequence[PassDescriptor]) -> tuple[PassDescriptor, ...]:
    """Return the passes but the shipped ones, which need ATen and the native torch library."""
    return tuple(item for item in selected if not item.pass_class.__module__.startswith(LIBRARY))


@functools.cache
def _warn_not_loaded(error: str) -> None:
    """Warn once a process; the report has the whole text every time."""
    _LOG.warning("not loaded: %s", error)


def last_report() -> PassReport | None:
    """Return the report of this thread's last run of passes, also that of torch.compile."""
    return getattr(_LAST, "report", None)


@contextmanager
def extend_last_report() -> Iterator[None]:
    """Add what passes do in this block to this thread's last report."""
    before = last_report()
    try:
        yield
    finally:
        after = last_report()
        if before is not None and after is not None and after is not before:
            before.results.extend(after.results)
            remember(before)


def run(
    graph: ir.Graph,
    selected: Sequence[PassDescriptor],
    options: Mapping[str, object],
    plugins: PluginReport,
    commit: Callable[..., Any] | None = None,
    fold: bool = False,
) -> PassReport:
    """Run passes over one graph; an error's report becomes this thread's last one."""
    try:
        with _outside_modes():
            report = passes.run_passes(graph, selected, options=options, commit=commit, fold=fold)
    except passes.PassError as error:
        error.report.plugin_errors = list(plugins.errors)
        remember(error.report)
        raise
    report.plugin_errors = list(plugins.errors)
    return report


def _outside_modes() -> AbstractContextManager[object]:
    """Switch torch's modes off while passes run, where torch is imported."""
    if "torch" not in sys.modules:
        return nullcontext()
    from bringup.compiler.aten import ordinary_torch

    return ordinary_torch()


def merge(report: PassReport, inner: PassReport) -> None:
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


def remember(report: PassReport) -> PassReport:
    """Make it this thread's last report, and return it."""
    _LAST.report = report
    return report
