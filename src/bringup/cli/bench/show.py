"""What `bringup bench` prints and writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from bringup import __version__, report
from bringup.cli.bench.measure import Row, machine
from bringup.cli.trial.verdict import spread
from bringup.report import Ratio
from bringup.report._columns import fixed, numbers

_NOISY = 0.5  # of the median: an interval that goes further says nothing


@dataclass(frozen=True)
class Run:
    """All that was found of an operator: `rows` by size; `product` is the GFLOP/s of torch's matrix
    product, 0 where it was not measured; `notes` are for the reader; `interrupted` runs have fewer
    sizes.
    """

    operator: str
    rows: Sequence[Row]
    product: float
    notes: Sequence[str]
    interrupted: bool = False

    @property
    def headline(self) -> str:
        """Return the size that comes nearest to what the machine can do, and the peers there."""
        best = max(self.rows, key=self.of_peak)
        roof = "memory" if self.of_peak(best) == best.gbs / best.peak_gbs else "matrix product"
        words = [f"{self.of_peak(best):.2f}x of the {roof} peak at {size_text(best.bytes)}"]
        words += [f"against {name}: {spread(ratio)}" for name, ratio in best.against.items()]
        return f"{self.operator}: {'; '.join(words)}"

    def of_peak(self, row: Row) -> float:
        """Return how near the operator comes to the nearer of both peaks."""
        return max(row.gbs / row.peak_gbs, row.gflops / self.product if self.product else 0.0)


def size_text(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GiB"


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _with_spread(text: str, ratio: Ratio) -> str:
    """Return the text of a median, and how far the ends of its interval are away."""
    away = max(ratio.high - ratio.median, ratio.median - ratio.low) / ratio.median
    if ratio.high == float("inf"):
        return f"{text} ?"
    return f"{text} ±{away:.0%}" if away <= _NOISY else f"{text} noisy"


def _times(ratio: Ratio | None) -> str:
    return "-" if ratio is None else _with_spread(f"{ratio.median:.2f}x", ratio)


def table(run: Run) -> report.Table:
    names = list(dict.fromkeys(name for row in run.rows for name in row.against))
    has_before, has_flops = any(row.before for row in run.rows), bool(run.product)
    columns = [*fixed("shape"), *numbers("us", "of peak", *["before"] * has_before)]
    columns += numbers(*names, "GB/s", *["GFLOP/s"] * has_flops, "moved", spare=True)
    shown = report.Table("", columns)
    for row in run.rows:
        before = "-" if row.before is None else f"{row.before:.2f}x{' slower' * row.is_slower}"
        shown.add(
            row.shape,
            _with_spread(_number(row.ns.median / 1e3), row.ns),
            f"{run.of_peak(row):.2f}x",
            *[before] * has_before,
            *(_times(row.against.get(name)) for name in names),
            _number(row.gbs),
            *[_number(row.gflops)] * has_flops,
            size_text(row.bytes),
        )
    here, is_beyond = machine(), any(run.of_peak(row) > 1 for row in run.rows)
    product = f", or torch's product of matrices, {_number(run.product)} GFLOP/s" * has_flops
    shown.notes += [
        f"{run.rows[0].dtype}; {here['processor']}, threads: {here['threads']}",
        "±: where the median lies, with 95 %; ?: too few rounds to say",
        f"of peak: of STREAM's triad of this size{product}",
        *["above 1: the operator only reads, or the machine was busy"] * is_beyond,
        *[f"{', '.join(names)}: how many times as long they take"] * bool(names),
        *run.notes,
    ]
    return shown


def as_json(run: Run) -> dict[str, object]:
    """Return the run as `--json` writes and `--compare` reads it."""
    return {
        **vars(run),
        "headline": run.headline,
        "machine": machine(),
        "versions": {"bringup": __version__, "torch": metadata.version("torch")},
        "rows": [_finite(row) for row in run.rows],
    }


def _finite(value: Any) -> Any:
    """Return nested fields, with None for what no number of JSON says."""
    if isinstance(value, (Row, Ratio)):
        value = report.finite_fields(value)
    return {name: _finite(one) for name, one in value.items()} if isinstance(value, dict) else value


def page(run: Run) -> report.Page:
    """Return a page: bandwidth by size and roofline (Williams, Waterman, Patterson, CACM 2009)."""
    triad = {"triad": [(row.bytes, row.peak_gbs) for row in run.rows]}
    points = {run.operator: [(row.bytes, row.gbs) for row in run.rows]}
    for row in run.rows:
        for name, ratio in row.against.items():
            points.setdefault(name, []).append((row.bytes, row.gbs / ratio.median))
    figures = [report.loglog(triad, points, x="bytes moved", y="GB/s")]
    sections = [report.Section("Bandwidth by size", figures=figures, tables=[table(run)])]
    if run.product:
        ours = [(row.flops / row.bytes, row.gflops) for row in run.rows if row.flops]
        speeds = {max(row.peak_gbs for row in run.rows), run.rows[-1].peak_gbs}
        along = [*(run.product / speed for speed in speeds), *(x for x, _ in ours)]
        least, most = min(along) / 2, max(along) * 2
        roofs = {
            f"{_number(speed)} GB/s": [
                (least, least * speed),
                (run.product / speed, run.product),
                (most, run.product),
            ]
            for speed in speeds
        }
        picture = report.loglog(roofs, {run.operator: ours}, x="FLOP/byte", y="GFLOP/s")
        sections.append(report.Section("Roofline", figures=[picture]))
    return report.Page(f"bringup bench {run.operator}", [run.headline], sections=sections)
