"""`bringup doctor`: what is there, what is missing, and the command that gets it."""

from __future__ import annotations

import typer
from rich.console import Console

from bringup import report, settings
from bringup.cli._checks import Finding, Health, run_checks
from bringup.cli._exit import ExitCode
from bringup.cli._needs import JsonFile, console_for, write_results

__all__ = ["doctor"]


def doctor(json_file: JsonFile = None) -> None:
    """Check the installation. Exit code 0: all is there, 1: something is missing."""
    findings = run_checks()
    healthy = all(finding.health is not Health.MISSING for finding in findings)
    console = console_for(json_file)
    _show(findings, console)
    results = {"healthy": healthy, "findings": findings, "settings": settings.table()}
    write_results(json_file, results, console)
    if not healthy:
        raise typer.Exit(ExitCode.FAILED)


def _show(findings: list[Finding], console: Console) -> None:
    found = report.Table("What is there", [report.Column(name) for name in ("", "what", "found")])
    for finding in findings:
        found.add(finding.health.value, finding.subject, finding.detail)
    report.render(found, console)

    columns = [report.Column("variable", fixed=True), report.Column("now, default and meaning")]
    variables = report.Table("Settings", columns)
    for row in settings.table():
        now = f"now {row['now']}; " if row["now"] else ""
        variables.add(row["variable"], f"{now}default {row['default']}; {row['meaning']}")
    report.render(variables, console)

    to_mend = [finding for finding in findings if finding.fix and finding.health is not Health.OK]
    for finding in to_mend:
        console.print(
            f"{finding.subject} ({finding.health.value}): {finding.fix}",
            markup=False,
            soft_wrap=True,
        )
    if not any(finding.health is Health.MISSING for finding in findings):
        console.print("Nothing is missing.")
