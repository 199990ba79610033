"""`bringup conformance`: how much of torch a device does right, natively and in all."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from bringup import report, settings
from bringup.cli._columns import numbers, texts
from bringup.cli._compare_command import print_lines
from bringup.cli._exit_codes import ExitCode
from bringup.cli._requirements import (
    HtmlFile,
    JsonFile,
    console_for,
    require_torch,
    write_page,
    write_results,
)
from bringup.cli._simulator import Operators, load_function, whose_kernels

if TYPE_CHECKING:
    from bringup.conformance import CaseResult, Conformance, Score


_SHOWN = 20
_OUTCOMES = ("pass", "refused", "failed", "crashed", "timeout", "skipped")
_KINDS = {
    "driver": "driver functions",
    "runtime": "runtime points",
    "op": "operators (OpInfo)",
    "module": "modules (ModuleInfo)",
    "optimizer": "optimizers (OptimizerInfo)",
}


def conformance(
    driver: Annotated[
        str | None, typer.Option(help="A driver's library or name; default: BRINGUP_DRIVER, sim.")
    ] = None,
    load: Annotated[
        str,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Called in each process once the driver is loaded: kernels of a package.",
        ),
    ] = "",
    operators: Operators = True,
    level: Annotated[
        int,
        typer.Option(min=0, max=2, help="0: driver; 1: and runtime; 2: and operators and models."),
    ] = 2,
    pattern: Annotated[
        str, typer.Option("--filter", help="Cases by name, as in a shell: 'op/*conv*/float32'.")
    ] = "*",
    every: Annotated[int, typer.Option(min=1, help="Each so-and-so-manieth case only.")] = 1,
    samples: Annotated[
        int, typer.Option(min=1, help="Inputs of an operator and dtype, at most.")
    ] = 10,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="What one case may take; then its process is ended.")
    ] = 120.0,
    workers: Annotated[int, typer.Option(min=1, help="Processes at a time.")] = 1,
    resume: Annotated[
        bool, typer.Option("--resume", help="Take over the cases of the last run.")
    ] = False,
    baseline: Annotated[
        Path | None,
        typer.Option(help="What an earlier run wrote with --json: what is worse is shown."),
    ] = None,
    json_file: JsonFile = None,
    html_file: HtmlFile = None,
) -> None:
    """Test a device: its driver, the runtime, and torch's own operator, module and optimizer
    samples against the CPU. Each case runs in a process that may crash.

    The headline is what the device does itself; what falls back to the host counts beside it. A
    refusal is no pass.

    Exit code 0: every case passes, or none is worse than in the baseline, 1: otherwise; 130:
    interrupted, with what was known until then (--resume goes on).
    """
    require_torch()
    from bringup import conformance as suite

    console = console_for(json_file)
    known = None if baseline is None else suite.read_baseline(baseline)

    def show(result: CaseResult, done: int, of: int) -> None:
        if result.outcome not in ("pass", "skipped") or done == of or not done % 100:
            line = f"{done} of {of}: {result.id} {result.outcome}"
            line += f": {result.reason}" if result.outcome != "pass" and result.reason else ""
            print_lines([line], console)

    name = driver or settings.driver() or "sim"
    kernels = load or (load_function(name) if operators else "")
    whose = "" if load else whose_kernels(name, loaded=bool(kernels))
    found = suite.run_conformance(
        name,
        load=kernels,
        level=level,
        pattern=pattern,
        every=every,
        samples=samples,
        seconds=seconds,
        workers=workers,
        resume=resume,
        baseline=known,
        on_result=show,
    )
    _show(found, baseline, whose, console)
    write_results(json_file, as_json(found), console)
    write_page(html_file, page(found, whose), console)
    if found.is_interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if found.not_passed if baseline is None else found.regressions:
        raise typer.Exit(ExitCode.FAILED)


def headline(found: Conformance) -> list[str]:
    """Return the native-only score first, the total beside it."""
    lines = []
    for name, score in _scores(found).items():
        if score.whole:
            native, total = score.native / score.whole, score.total / score.whole
            whole = f"{score.whole:.1f} s" if name == "time" else f"{score.whole:,.0f}"
            words = f"{native:.1%} native ({total:.1%} with the host's help)"
            lines.append(f"{name}: {words}, of {whole}")
    return lines


def _scores(found: Conformance) -> dict[str, Score]:
    return {
        "operators": found.operators(),
        "calls": found.calls(),
        "time": found.seconds(),
        "cases": found.cases(),
    }


def _show(found: Conformance, baseline: Path | None, whose: str, console: Console) -> None:
    print_lines([*headline(found), *filter(None, [whose])], console)
    report.render(_outcomes(found), console)
    if found.resumed:
        print_lines([f"{found.resumed} cases are from the last run"], console)
    if baseline is not None:
        print_lines([f"{len(found.regressions)} cases are worse than in {baseline}"], console)
        worse = [f"  {case}: {then} -> {now}" for case, then, now in found.regressions[:_SHOWN]]
        print_lines(worse, console)


def as_json(found: Conformance) -> dict[str, object]:
    """Return the run for `--json`."""
    return {
        "facts": found.facts,
        "interrupted": found.is_interrupted,
        "scores": {name: vars(score) for name, score in _scores(found).items()},
        "regressions": [
            {"id": case, "then": then, "now": now} for case, then, now in found.regressions
        ],
        "results": [vars(one) for one in found.results],
    }


def _outcomes(found: Conformance) -> report.Table:
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
    """Return what a vendor can publish: coverage by family, cost of fallback, error by dtype, and
    every case that does not pass. `whose` says whose the native kernels are.
    """
    sections = [
        _families(found),
        report.Section("All cases", tables=[_outcomes(found)]),
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
    from bringup.conformance import families

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
