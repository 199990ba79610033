"""`bringup doctor`: what is there, what is missing, and the command that gets it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bringup import devices, report, settings
from bringup.cli import _doctor_views
from bringup.cli._doctor_checks import Finding, Health, run_checks
from bringup.cli._exit_codes import ExitCode
from bringup.cli._requirements import JsonFile, Output, require_torch
from bringup.devices import DriverDescription
from bringup.errors import DriverError, NativeLibraryError
from bringup.report._columns import fixed, texts


def doctor(
    op: Annotated[
        str | None,
        typer.Option("--op", metavar="NAME", help="Show which kernel is on which dispatch key."),
    ] = None,
    stubs: Annotated[
        bool, typer.Option("--stubs", help="List what REGISTER_PRIVATEUSE1_DISPATCH can register.")
    ] = False,
    driver: Annotated[
        str | None,
        typer.Option(
            "--driver",
            metavar="DRIVER",
            help="A driver by name or path: its devices, or its table.",
        ),
    ] = None,
    show_settings: Annotated[
        bool, typer.Option("--settings", help="Show every setting, not only those that are set.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Check the installation. Exit code 0: all is there, 1: something is missing.

    A driver that --driver or BRINGUP_DRIVER names is asked what it is, in a process of its own.
    With --op: the dispatch table of an operator such as aten::add.Tensor. Exit code 1: there is no
    such operator. With --stubs: the dispatch stubs of the installed torch, from its headers.
    """
    if stubs:
        if op is not None or driver is not None:
            raise typer.BadParameter("goes with neither --op nor --driver", param_hint="--stubs")
        _doctor_views.show_stubs(json_file)
        return
    if op is not None:
        if driver is not None:
            require_torch()
            devices.load_driver(driver)
        _doctor_views.show_operator(op, json_file)
        return
    _check(driver, show_settings, json_file)


def _check(driver: str | None, show_settings: bool, json_file: Path | None) -> None:
    findings = run_checks()
    described = _described(driver, findings)
    healthy = all(finding.health is not Health.MISSING for finding in findings)
    out = Output(json_file)
    _show(findings, out.console)
    if described is not None:
        _doctor_views.show_driver(described, out.console)
    _show_settings(out.console, every=show_settings)
    if described is None:
        out.console.print("No driver is named: --driver NAME shows its devices.", soft_wrap=True)
    results = {
        "healthy": healthy,
        "findings": findings,
        "driver": _doctor_views.driver_results(described),
        "settings": settings.table(),
    }
    out.results(results)
    if not healthy:
        raise typer.Exit(ExitCode.FAILED)


def _described(driver: str | None, findings: list[Finding]) -> DriverDescription | None:
    """Return the driver of --driver or BRINGUP_DRIVER, asked elsewhere; what fails is a finding."""
    named = settings.named_driver() if driver is None else driver
    if named is None:
        return None
    fix = f"bringup driver check {named}"
    try:
        found = devices.describe_driver(devices.driver_library(named))
    except (DriverError, NativeLibraryError) as error:
        findings.append(Finding("devices", Health.MISSING, str(error), "name another driver"))
        return None
    if found.failure:
        findings.append(Finding("devices", Health.MISSING, found.failure, fix))
    return found


def _show(findings: list[Finding], console: Console) -> None:
    """Print the answer, what mends it, and then what is there."""
    missing = [finding for finding in findings if finding.health is Health.MISSING]
    answer = f"{len(missing)} missing:" if missing else "Nothing is missing."
    console.print(answer, style="bold", highlight=False)
    for finding in sorted(findings, key=lambda finding: finding.health is not Health.MISSING):
        if finding.fix and finding.health is not Health.OK:
            text = f"{finding.subject} ({finding.health.value}): {finding.fix}"
            console.print(text, markup=False, soft_wrap=True)
    rows: list[tuple[str, ...]] = [
        (finding.health.value, finding.subject, finding.detail) for finding in findings
    ]
    columns = [*fixed("", "what"), *texts("found")]
    report.render(report.Table("What is there", columns, rows), console)


def _show_settings(console: Console, *, every: bool) -> None:
    table = report.Table("Settings", [*fixed("variable"), *texts("meaning")])
    for row in settings.table():
        now = f"now {row['now']}; " if row["now"] else ""
        if now or every:
            table.add(row["variable"], f"{now}{row['meaning']}; default: {row['default']}")
    if not table.rows:
        console.print("\nNo setting is changed: --settings shows them all.", soft_wrap=True)
        return
    if not every:
        table.notes.append("--settings shows those that are not changed, too")
    report.render(table, console)
