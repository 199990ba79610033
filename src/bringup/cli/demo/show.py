"""What the demo prints: one table, the nearest pairs, and what else a reader should know."""

from __future__ import annotations

from collections.abc import Sequence

from rich.bar import Bar
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from bringup import report
from bringup.cli.demo.measure import Pair, Row
from bringup.cli.demo.modes import Mode
from bringup.cli.demo.run import DemoResult
from bringup.cli.demo.texts import LengthClass
from bringup.cli.trial.show import RATIO_NOTES, RATIOS, finite_row, ratio_cells, ratio_text
from bringup.cli.trial.verdict import spread
from bringup.report import Judgement
from bringup.report._columns import fixed, numbers, texts

_COLUMNS = (*fixed("mode", "length"), *numbers("ms"), *RATIOS, *numbers("ops", "diff"))
_PEERS = (Mode.EAGER.value, Mode.INDUCTOR.value, Mode.FROZEN_INDUCTOR.value)
_BAR = 30  # characters
_PREFERRED = LengthClass.MIDDLE.value


_INDUCTOR_NOTE = (
    "Inductor is torch.compile as it comes. With its `freezing` option it packs",
    "  weights too and is faster: `bringup demo --freezing` shows it.",
)


def verdict(rows: Sequence[Row]) -> str:
    """Return what came out on the first device, in a sentence: no time where it is too noisy."""
    ours = _of(rows, Mode.CAPTURED)
    eager = _of(rows, Mode.EAGER)
    if ours is None or eager is None or ours.speedup_vs_eager is None:
        return "Nothing was compared."
    ratio = ours.speedup_vs_eager
    if ratio.judgement is Judgement.TOO_NOISY or not spread(ratio).endswith(")"):
        return f"One sentence: bringup against eager: {spread(ratio)}; the machine is busy."
    worst = max(row.max_abs_diff for row in rows if row.mode == ours.mode)
    return (
        f"One sentence: {eager.ms:.1f} ms eager, {ours.ms:.1f} ms bringup: {spread(ratio)}, "
        f"largest difference {worst:.0e}"
    )


def shown_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the modes of the first device, for the sentences that stand for all: middle ones."""
    first = [row for row in rows if row.device == rows[0].device]
    buckets = [row.bucket for row in first]
    bucket = _PREFERRED if _PREFERRED in buckets else buckets[0] if buckets else ""
    return [row for row in first if row.bucket == bucket]


def _of(rows: Sequence[Row], mode: Mode) -> Row | None:
    return next((row for row in shown_rows(rows) if row.mode == mode.value), None)


def _bars(rows: Sequence[Row]) -> RichTable:
    shown = shown_rows(rows)
    longest = max((row.ms for row in shown), default=1.0)
    grid = RichTable.grid(padding=(0, 1))
    for row in shown:
        words = "" if row.mode == Mode.EAGER.value else ratio_text(row.speedup_vs_eager)
        bar = Bar(longest, 0, row.ms, width=_BAR)
        grid.add_row(Text(row.mode), bar, Text(f"{row.ms:.1f} ms"), Text(words))
    return grid


def result_table(device: str, rows: Sequence[Row], notes: Sequence[str]) -> report.Table:
    title = f"all-MiniLM-L6-v2 on {device}, one sentence at a time"
    table = report.Table(title, _COLUMNS, notes=list(notes))
    for row in rows:
        table.add(
            row.mode,
            row.bucket,
            f"{row.ms:.2f}",
            *ratio_cells(row.mode, row.ms, row.speedup_vs_eager, row.speedup_vs_inductor),
            str(row.host_ops),
            f"{row.max_abs_diff:.1e}",
        )
    return table


def _shortened(text: str) -> str:
    return text if len(text) <= 70 else text[:67] + "..."


def pair_table(pairs: Sequence[Pair]) -> report.Table:
    table = report.Table(
        "The nearest sentences (by the captured model): do they mean the same?",
        [*numbers("cosine"), *texts("one", "other")],
    )
    for pair in pairs:
        table.add(f"{pair.cosine:.3f}", _shortened(pair.first), _shortened(pair.second))
    return table


def show(console: Console, result: DemoResult) -> None:
    rows = result.rows
    console.print(Text(f"\n{verdict(rows)}", style="bold"), soft_wrap=True)
    if result.is_interrupted:
        console.print("Interrupted: this is what was measured until then.", highlight=False)
    if rows:
        console.print(_bars(rows))
    for act in result.acts:
        console.print(Text(f"{act.title}: {act.words}"))
    modes = {row.mode for row in rows}
    without_freezing = Mode.INDUCTOR.value in modes and Mode.FROZEN_INDUCTOR.value not in modes
    explained = [
        f"least cosine to eager on cpu: {min((row.min_cosine for row in rows), default=1):.5f}",
        "ms: median over the sentences of each one's median time.",
        *RATIO_NOTES,
        "diff: the largest, against eager on cpu, over all sentences; so is the cosine.",
        "ops: operators dispatched by the host for a sentence; a captured graph is none",
        "; ".join(f"{kind.value}: {kind.range_text}" for kind in LengthClass),
        *(_INDUCTOR_NOTE if without_freezing else ()),
        *result.notes,
    ]
    devices = list(dict.fromkeys(row.device for row in rows))
    for device in devices:
        notes = explained if device == devices[-1] else []
        of_device = [row for row in rows if row.device == device]
        report.render(result_table(device, of_device, notes), console)
    if result.nearest:
        report.render(pair_table(result.nearest), console)


def page(result: DemoResult) -> report.Page:
    sections = []
    for act in result.acts:
        figures = []
        if act.us:
            times = [(name, us, f"{us:.2f} us") for name, us in act.us.items()]
            figures.append(report.bars(times, peers=["torch.add"]))
        if act.losses:
            figures.append(report.curve(act.losses, "loss by step"))
        sections.append(report.Section(act.title, text=[act.words], figures=figures))
    shown = shown_rows(result.rows)
    picture = [(row.mode, row.ms, _value_text(row)) for row in shown]
    tables = [
        result_table(device, [row for row in result.rows if row.device == device], [])
        for device in dict.fromkeys(row.device for row in result.rows)
    ]
    if tables:
        tables[-1].notes += result.notes
    figures = [report.bars(picture, peers=_PEERS)] if picture else []
    sections.append(report.Section("A model", figures=figures, tables=tables))
    return report.Page("bringup demo", [verdict(result.rows)], sections=sections)


def _value_text(row: Row) -> str:
    ratio = "" if row.mode == Mode.EAGER.value else ratio_text(row.speedup_vs_eager)
    return f"{row.ms:.1f} ms  {ratio}"


def as_json(result: DemoResult) -> dict[str, object]:
    return {
        **vars(result),
        "verdict": verdict(result.rows),
        "rows": [finite_row(row) for row in result.rows],
        "nearest": [report.finite_fields(pair) for pair in result.nearest],
        "acts": [
            {**vars(act), "ratio": None if act.ratio is None else report.finite_fields(act.ratio)}
            for act in result.acts
        ],
    }
