"""What a coverage comes down to: headline, tables, a page."""

from __future__ import annotations

from bringup import report
from bringup.conformance._coverage import Coverage, Need, Support
from bringup.report._columns import fixed, names, numbers, texts

_SHARES = ("operators", "calls", "flops", "bytes")
_LEAST_SHAPES = 10


def share_values(found: Coverage) -> dict[str, dict[str, float]]:
    """Return the part of everything that is met in each way."""
    return {s.value: {name: found.share(s, name) for name in _SHARES} for s in Support}


def shares_table(found: Coverage) -> report.Table:
    table = report.Table("Share of all", [*fixed(""), *numbers(*_SHARES)])
    for name, values in share_values(found).items():
        table.add(name, *(f"{value:.0%}" for value in values.values()))
    return table


def needs_table(found: Coverage, rows: int) -> report.Table:
    columns = [*names("operator"), *fixed("phase", "dtype"), *numbers("calls", "MFLOP", "MiB")]
    columns += [*fixed("runs"), *texts("shapes", least=_LEAST_SHAPES)]
    table = report.Table(f"What the model needs of {found.device}: {len(found.needs)}", columns)
    for need in found.needs[:rows]:
        table.add(
            need.operator.removeprefix("aten::"),
            need.phase,
            ", ".join(need.dtypes),
            f"{need.calls:,}",
            f"{need.flops / 1e6:,.2f}",
            f"{need.bytes / 2**20:,.2f}",
            need.support.value,
            _shapes(need),
        )
    if len(found.needs) > rows:
        table.notes.append(f"{len(found.needs) - rows} more: --rows, --json")
    reasons = {f"{need.operator}: {need.reason}" for need in found.needs if need.reason}
    table.notes += [*sorted(reasons), *found.notes]
    return table


def eager_table(found: Coverage) -> report.Table:
    """Return the nodes of compiled graphs that stay eager operators."""
    columns = [*texts("operator: reason"), *numbers("nodes")]
    table = report.Table("Eager operators in compiled graphs", columns)
    for name, count in (found.eager_nodes or {}).items():
        table.add(name, f"{count:,}")
    if not table.rows:
        table.notes.append("none")
    return table


def _shapes(need: Need) -> str:
    shown = [str(list(shape)).replace(" ", "") for shape in need.shapes[:4]]
    return " ".join(shown) + (f" and {len(need.shapes) - 4} more" if len(need.shapes) > 4 else "")


def headline(found: Coverage) -> str:
    native = share_values(found)["native"]
    share = f"{native['flops']:.0%} of the FLOPs and {native['operators']:.0%} of the operators"
    return f"{share} native"


def page(found: Coverage, target: str = "A model", whose: str = "") -> report.Page:
    values = share_values(found)
    names = list(values)
    bars = [
        report.Bar(
            what, [values[name][what] for name in names], f"{values['native'][what]:.0%} native"
        )
        for what in _SHARES
    ]
    sections = [
        report.Section("Share of all", key=names, bars=bars),
        report.Section("The work list", tables=[needs_table(found, len(found.needs))]),
    ]
    if found.eager_nodes is not None:
        sections.append(report.Section("Compiled", tables=[eager_table(found)]))
    facts = {"model": target, "device": found.device, "phases": ", ".join(found.phases)}
    return report.Page(
        f"{target} on {found.device}", [headline(found), *filter(None, [whose])], facts, sections
    )
