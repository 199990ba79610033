"""What `bringup try` prints."""

from __future__ import annotations

from rich.console import Console

from bringup import report
from bringup.cli.trial.run import Trial

__all__ = ["as_json", "show"]

_MOST_SLOTS = 8


def _pass_table(trial: Trial) -> report.Table:
    columns = [
        report.Column("graph", number=True),
        report.Column("pass", fixed=True),
        report.Column("status", fixed=True),
        report.Column("matches", number=True),
        report.Column("nearest miss, or why not"),
    ]
    table = report.Table("What the passes did", columns)
    for number, found in enumerate(trial.reports, start=1):
        for result in found.results:
            missed = (
                "; ".join(str(miss) for miss in result.near_misses) if not result.matches else ""
            )
            table.add(
                str(number),
                result.name,
                result.status.value,
                str(result.matches),
                result.message or missed,
            )
    return table


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _times(factor: float | None) -> str:
    return "-" if factor is None else f"{factor:.2f}x"


def _time_table(trial: Trial) -> report.Table:
    columns = [
        report.Column("mode", fixed=True),
        report.Column("ms", number=True),
        report.Column("vs eager", number=True),
        report.Column("vs Inductor", number=True),
        report.Column("max |diff|", number=True),
        report.Column("why not"),
    ]
    table = report.Table(trial.name, columns, notes=trial.notes)
    for line in trial.lines:
        table.add(
            line.mode,
            _number(line.ms, ".2f"),
            _times(line.speedup),
            _times(line.speedup_vs_inductor),
            _number(line.max_abs_diff, ".1e"),
            line.reason,
        )
    return table


def show(console: Console, trial: Trial) -> None:
    """Print passes, slots, times and reasons."""
    if trial.reports:
        report.render(_pass_table(trial), console)
    report.render(_time_table(trial), console)
    if trial.slots:
        more = (
            "" if len(trial.slots) <= _MOST_SLOTS else f" and {len(trial.slots) - _MOST_SLOTS} more"
        )
        console.print(
            f"Can be updated between replays: {', '.join(trial.slots[:_MOST_SLOTS])}{more}",
            markup=False,
        )


def as_json(trial: Trial) -> dict[str, object]:
    """The trial as values that `report.write_json` takes; a difference that is NaN or
    infinite becomes null.
    """
    return {
        "name": trial.name,
        "rows": [report.finite_fields(line) for line in trial.lines],
        "passes": trial.reports,
        "slots": trial.slots,
        "notes": trial.notes,
    }
