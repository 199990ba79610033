"""`bringup doctor`: what is there, what is missing, and the command that gets it."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from bringup import report, settings
from bringup.cli._checks import Finding, Health, run_checks

__all__ = ["doctor"]


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Check the installation. Exit code 0: all is there, 1: something is missing."""
    findings = run_checks()
    healthy = all(finding.health is not Health.MISSING for finding in findings)
    if as_json:
        typer.echo(
            report.to_json({"healthy": healthy, "findings": findings, "settings": settings.table()})
        )
    else:
        _show(findings)
    if not healthy:
        raise typer.Exit(1)


def _show(findings: list[Finding]) -> None:
    console = Console()
    found = report.Table("What is there", [report.Column(name) for name in ("", "what", "found")])
    for finding in findings:
        found.add(finding.health.value, finding.subject, finding.detail)
    report.render(found, console)

    variables = report.Table(
        "Settings",
        [
            report.Column("variable", fixed=True),
            *(report.Column(name) for name in ("now", "default", "meaning")),
        ],
    )
    for row in settings.table():
        variables.add(row["variable"], row["now"], row["default"], row["meaning"])
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
