"""What the demo prints: one table, the nearest pairs, and what else a reader should know."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from bringup import report
from bringup.cli._columns import fixed, numbers, texts
from bringup.cli.demo.measure import Pair, Row
from bringup.cli.demo.modes import Mode
from bringup.cli.demo.texts import LengthClass

_COLUMNS = (
    *fixed("device", "mode", "length"),
    *numbers("ms", "eager/\nthis", "Inductor/\nthis", "ops", "max\n|diff|", "min\ncosine"),
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


def _shortened(text: str) -> str:
    return text if len(text) <= 70 else text[:67] + "..."


def pair_table(pairs: Sequence[Pair]) -> report.Table:
    """Return the nearest sentence pairs, to be judged by eye."""
    table = report.Table(
        "The nearest sentences (by the captured model): do they mean the same?",
        [*numbers("cosine"), *texts("one", "other")],
    )
    for pair in pairs:
        table.add(f"{pair.cosine:.3f}", _shortened(pair.first), _shortened(pair.second))
    return table


def show(
    console: Console, rows: Sequence[Row], pairs: Sequence[Pair], notes: Sequence[str]
) -> None:
    """Print everything. Notes explain the columns first, then what is special about this run."""
    modes = {row.mode for row in rows}
    without_freezing = Mode.INDUCTOR.value in modes and Mode.FROZEN_INDUCTOR.value not in modes
    explained = [
        "ms: median over the sentences of each one's median time.",
        "eager/this, Inductor/this: how many times faster; median over the sentences,",
        "  on the same device, in interleaved rounds.",
        "diff, cosine: against eager on cpu, over all sentences.",
        "ops: operators dispatched by the host for one sentence; a captured graph is none",
        "; ".join(f"{kind.value}: {kind.range_text}" for kind in LengthClass),
        *(_INDUCTOR_NOTE if without_freezing else ()),
        *notes,
    ]
    report.render(result_table(rows, explained), console)
    if pairs:
        report.render(pair_table(pairs), console)
