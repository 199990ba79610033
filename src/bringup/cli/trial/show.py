"""What `bringup try` prints."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from bringup import report
from bringup.cli.trial.run import Line, Trial
from bringup.cli.trial.verdict import recommended_code, spread, verdict
from bringup.kernels.patterns import LIBRARY
from bringup.passes import PassStatus
from bringup.passes.report import match_bars
from bringup.report import Judgement, Ratio
from bringup.report._columns import fixed, numbers, texts

RATIOS = fixed("eager/this", "Inductor/this")
RATIO_NOTES = (
    "eager/this, Inductor/this: how many times as fast, in interleaved rounds",
    "  on the same device; in brackets where the median lies, with 95 %.",
)
_IDLE = (PassStatus.UNCHANGED, PassStatus.SKIPPED)
_SHIPPED = frozenset(f"Library{item.__name__}" for item in LIBRARY)


def line_text(line: Line) -> str:
    if line.ms is None:
        return f"{line.mode}: {line.reason}"
    ratio = line.speedup
    words = f"{line.mode}: {_milliseconds(line.ms)} ms"
    if ratio is None or line.mode == "eager":
        return words
    return f"{words}, against eager {spread(ratio)}, rounds: {ratio.rounds}"


def _pass_table(trial: Trial) -> report.Table:
    columns = [*numbers("graph"), *fixed("pass", "status"), *numbers("matches")]
    columns += texts("nearest miss, or why not")
    table = report.Table("What the passes did", columns)
    silent: set[str] = set()
    for number, found in enumerate(trial.reports, start=1):
        for result in found.results:
            if result.name in _SHIPPED and result.status in _IDLE:
                silent.add(result.name)
                continue
            missed = "" if result.matches else "; ".join(map(str, result.near_misses))
            status, matches = result.status.value, str(result.matches)
            table.add(str(number), result.name, status, matches, result.message or missed)
    changed = {row[1] for row in table.rows}
    if found_nothing := len(silent - changed):
        why = f"`bringup passes explain {trial.name}` says why"
        table.notes.append(f"{found_nothing} shipped passes found nothing in it: {why}.")
    return table


def _milliseconds(value: float | None) -> str:
    return _number(value, ".3g" if value is None or value < 100 else ".0f")


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def ratio_text(ratio: Ratio | None) -> str:
    """Return a ratio with its interval; "-" where nothing was compared."""
    return "-" if ratio is None else spread(ratio)


def ratio_cells(
    mode: str, ms: float | None, to_eager: Ratio | None, to_inductor: Ratio | None
) -> Iterator[str]:
    """Yield the cells of `RATIOS` for a mode: its ratios in the room of a column."""
    for peer, ratio in (("eager", to_eager), ("inductor", to_inductor)):
        if mode == peer and ms is not None:
            yield "1"
        elif ratio is not None and ratio.judgement is Judgement.TOO_NOISY:
            yield "too noisy" if math.isfinite(ratio.high) else "too few rounds"
        else:
            yield ratio_text(ratio).replace("x (", " (").replace(" to ", "-")


def _time_table(trial: Trial) -> report.Table:
    columns = [*fixed("mode"), *numbers("ms"), *RATIOS, *numbers("rounds", "max |diff|")]
    notes = [*RATIO_NOTES, f"Threads of every mode: {trial.threads}.", *trial.notes]
    table = report.Table(trial.name, columns, notes=notes)
    for line in trial.lines:
        table.add(
            line.mode,
            _milliseconds(line.ms),
            *ratio_cells(line.mode, line.ms, line.speedup, line.speedup_vs_inductor),
            "-" if line.speedup is None else str(line.speedup.rounds),
            _number(line.max_abs_diff, ".1e"),
        )
    return table


def show(console: Console, trial: Trial) -> None:
    if trial.reports:
        report.render(_pass_table(trial), console)
    report.render(_time_table(trial), console)
    for line in trial.lines:
        if line.reason:
            _print(console, f"{line.mode}: {line.reason}")
    for broken in trial.breaks:
        _print(console, f"graph break: {broken}")
    if trial.is_interrupted:
        _print(console, "Interrupted: this is what was measured until then.")
    console.print(Text(f"\n{verdict(trial)}", style="bold"), soft_wrap=True)
    if code := recommended_code(trial):
        _print(console, f"{code}  # call it under torch.inference_mode()")


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def as_json(trial: Trial) -> dict[str, object]:
    """Return the trial as values for `report.write_json`; NaN and infinity become null."""
    return {
        "name": trial.name, "threads": trial.threads, "verdict": verdict(trial),
        "code": recommended_code(trial), "interrupted": trial.is_interrupted,
        "rows": [finite_row(line) for line in trial.lines], "tolerance": trial.tolerance,
        "narrow_tolerance": trial.narrow_tolerance, "passes": trial.reports,
        "graph_breaks": [asdict(broken) for broken in trial.breaks], "notes": trial.notes,
    }  # fmt: skip


def finite_row(line: Any) -> dict[str, object]:
    """Return the fields of a row of times, its ratios with their judgement."""
    row = report.finite_fields(line)
    for name in ("speedup", "speedup_vs_eager", "speedup_vs_inductor"):
        ratio: Ratio | None = getattr(line, name, None)
        if ratio is not None:
            row[name] = {**report.finite_fields(ratio), "judgement": ratio.judgement}
    return row


def page(trial: Trial) -> report.Page:
    timed = [line for line in trial.lines if line.ms is not None]
    times = [(line.mode, line.ms or 0.0, f"{_milliseconds(line.ms)} ms") for line in timed]
    ratios = [
        (line.mode, line.speedup)
        for line in timed
        if line.mode != "eager" and line.speedup is not None and line.speedup.high < float("inf")
    ]
    figures = [report.bars(times, peers=("eager", "inductor"))] if times else []
    sections = [report.Section("Time of a call", figures=figures, tables=[_time_table(trial)])]
    if ratios:
        intervals = report.intervals([(mode, ratio, spread(ratio)) for mode, ratio in ratios])
        sections.append(report.Section("Times as fast as eager", figures=[intervals]))
    if figures := match_bars(trial.reports):
        sections.append(report.Section("Matches of the passes", figures=figures))
    headline = [verdict(trial), recommended_code(trial)]
    return report.Page(f"bringup try {trial.name}", headline, sections=sections)
