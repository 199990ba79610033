"""What a run of cases comes down to: headline, tables, and a page that a vendor can publish."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from bringup import report
from bringup.conformance._cases import CaseResult
from bringup.conformance._suite import Conformance, Score, families
from bringup.report._columns import numbers, texts

_SHOWN = 20
_OUTCOMES = ("pass", "refused", "failed", "crashed", "timeout", "skipped")
_KINDS = {
    "driver": "driver functions", "runtime": "runtime points", "op": "operators (OpInfo)",
    "module": "modules (ModuleInfo)", "optimizer": "optimizers (OptimizerInfo)",
    "compile": "torch.compile", "amp": "mixed precision", "graph": "captured graphs",
    "ddp": "DDP, two ranks", "fsdp2": "FSDP2, two ranks", "train": "models that train",
}  # fmt: skip


def headline(found: Conformance) -> list[str]:
    """Return the native-only score first, the total beside it."""
    lines = []
    for name, score in scores(found).items():
        if score.whole:
            native, total = score.native / score.whole, score.total / score.whole
            whole = f"{score.whole:.1f} s" if name == "time" else f"{score.whole:,.0f}"
            words = f"{native:.1%} native ({total:.1%} with the host's help)"
            lines.append(f"{name}: {words}, of {whole}")
    return lines


def scores(found: Conformance) -> dict[str, Score]:
    return {
        "operators": found.operators(),
        "calls": found.calls(),
        "time": found.seconds(),
        "cases": found.cases(),
    }


def outcomes_table(found: Conformance) -> report.Table:
    columns = [*texts("cases"), *numbers("native", *_OUTCOMES)]
    table = report.Table(f"Conformance of {found.facts.get('device', 'the driver')}", columns)
    for kind, name in _KINDS.items():
        ones = [one for one in found.results if one.kind == kind]
        counts = Counter(one.outcome for one in ones)
        if ones:
            native = sum(one.native for one in ones)
            table.add(name, str(native), *(str(counts[outcome]) for outcome in _OUTCOMES))
    return table


def page(found: Conformance, whose: str = "") -> report.Page:
    sections = [
        _families(found),
        report.Section("All cases", tables=[outcomes_table(found)]),
        _fallback_cost(found),
        report.Section("Error by dtype", tables=[_errors(found)]),
        report.Section("Not passed", tables=[_not_passed(found)]),
    ]
    if found.regressions:
        table = report.Table("", texts("case", "then", "now"), list(found.regressions))
        sections.insert(0, report.Section("Worse than in the baseline", tables=[table]))
    device = found.facts.get("device", Path(found.facts["driver"]).name)
    title = f"Conformance of {device}"
    if found.is_interrupted:
        title += " (interrupted)"
    return report.Page(title, [*headline(found), *filter(None, [whose])], found.facts, sections)


def _families(found: Conformance) -> report.Section:
    bars = []
    for family, ones in families(found.tried("op")).items():
        native = sum(one.native for one in ones)
        fallback = sum(one.outcome == "pass" for one in ones) - native
        refused = sum(one.outcome == "refused" for one in ones)
        wrong = len(ones) - native - fallback - refused
        parts = [native, fallback, wrong, refused]
        value = f"{native} native, {fallback} on the host, of {len(ones)}"
        bars.append(report.Bar(family, [part / len(ones) for part in parts], value))
    words = "One case is an operator in one dtype, forward and, for float32, backward."
    key = ("native", "with the host's help", "wrong, crashed or hung", "refused")
    return report.Section("Operators by family", [words], key, bars)


def _fallback_cost(found: Conformance) -> report.Section:
    columns = [*texts("operator"), *numbers("calls on the host", "ms on the host")]
    table = report.Table("What cost most on the host", columns)
    calls: Counter[str] = Counter()
    seconds: dict[str, float] = {}
    for one in found.tried("op"):
        calls[one.subject] += one.calls_on_host
        seconds[one.subject] = seconds.get(one.subject, 0.0) + one.seconds_on_host
    for name, spent in sorted(seconds.items(), key=lambda item: -item[1])[:_SHOWN]:
        if spent:
            table.add(name, f"{calls[name]:,}", f"{spent * 1e3:,.1f}")
    score = found.seconds()
    share = 1 - score.native / score.total if score.total else 0.0
    words = f"{share:.1%} of the time of cases that pass was spent on the host."
    return report.Section("Cost of the fallback", [words], tables=[table])


def _errors(found: Conformance) -> report.Table:
    figures = numbers("cases that pass", "bit-exact", "largest error")
    columns = [*texts("dtype"), *figures, *texts("of")]
    table = report.Table("Beside the CPU, relative to the largest value", columns)
    by_dtype: dict[str, list[CaseResult]] = {}
    for one in found.tried("op"):
        if one.outcome == "pass":
            by_dtype.setdefault(one.dtype, []).append(one)
    for dtype, ones in by_dtype.items():
        largest = max(ones, key=lambda one: one.error)
        exact = sum(one.error == 0 for one in ones)
        of = largest.subject if largest.error else ""
        table.add(dtype, str(len(ones)), str(exact), f"{largest.error:.1e}", of)
    return table


def _not_passed(found: Conformance) -> report.Table:
    rows: list[tuple[str, ...]] = [(one.id, one.outcome, one.reason) for one in found.not_passed]
    return report.Table(f"{len(rows)} cases", texts("case", "outcome", "reason"), rows)
