"""What the demo prints: one table, the nearest pairs, and what else a reader should know."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from bringup import report
from bringup.cli.demo.measure import Pair, Row
from bringup.cli.demo.modes import Mode
from bringup.cli.demo.texts import LengthClass

_COLUMNS = (
    report.Column("device", fixed=True),
    report.Column("mode", fixed=True),
    report.Column("length", fixed=True),
    report.Column("ms", number=True),
    report.Column("eager/\nthis", number=True),
    report.Column("Inductor/\nthis", number=True),
    report.Column("ops", number=True),
    report.Column("max\n|diff|", number=True),
    report.Column("min\ncosine", number=True),
)


_INDUCTOR_NOTE = (
    "Inductor is torch.compile as it comes. With its `freezing` option it packs weights",
    "  too and is faster: `bringup demo --freezing` shows it.",
)


def _times(factor: float | None) -> str:
    return "-" if factor is None else f"{factor:.2f}"


def result_table(rows: Sequence[Row], notes: Sequence[str]) -> report.Table:
    """Return the demo's table: every mode on every device for short, middle and long sentences."""
    table = report.Table("all-MiniLM-L6-v2, one sentence at a time", _COLUMNS, notes=list(notes))
    for row in rows:
        table.add(
            row.device,
            row.mode,
            row.bucket,
            f"{row.ms:.2f}",
            _times(row.speedup_vs_eager),
            _times(row.speedup_vs_inductor),
            str(row.host_ops),
            f"{row.max_abs_diff:.1e}",
            f"{row.min_cosine:.5f}",
        )
    return table


def _shortened(text: str, width: int = 70) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def pair_table(pairs: Sequence[Pair]) -> report.Table:
    """Return the nearest sentence pairs, to be judged by eye."""
    table = report.Table(
        "The nearest sentences (by the captured model): do they mean the same?",
        (report.Column("cosine", number=True), report.Column("one"), report.Column("other")),
    )
    for pair in pairs:
        table.add(f"{pair.cosine:.3f}", _shortened(pair.first), _shortened(pair.second))
    return table


def _about_inductor(shown: set[str]) -> tuple[str, ...]:
    """Return what the table does not say of Inductor, where it has rows of it."""
    if Mode.INDUCTOR.value not in shown or Mode.FROZEN_INDUCTOR.value in shown:
        return ()
    return _INDUCTOR_NOTE


def show(
    console: Console, rows: Sequence[Row], pairs: Sequence[Pair], notes: Sequence[str]
) -> None:
    """Print everything. Notes explain the columns first, then what is special about this run."""
    explained = [
        "ms: median over the sentences of each one's median time.",
        "eager/this, Inductor/this: how many times faster; median over the sentences,",
        "  on the same device, in interleaved rounds.",
        "diff, cosine: against eager on cpu, over all sentences.",
        "ops: operators dispatched by the host for one sentence; a captured graph is none",
        "; ".join(
            f"{length_class.value}: {length_class.range_text}" for length_class in LengthClass
        ),
        *_about_inductor({row.mode for row in rows}),
        *notes,
    ]
    report.render(result_table(rows, explained), console)
    if pairs:
        report.render(pair_table(pairs), console)
