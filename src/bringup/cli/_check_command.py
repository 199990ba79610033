"""`bringup check`: is an operator right in every way that torch may call it?"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bringup.cli._needs import JsonFile, console_for, require_torch, write_results

__all__ = ["check"]


def check(
    operator: Annotated[str, typer.Argument(help="namespace::name, or namespace::name.overload.")],
    modules: Annotated[
        list[str] | None,
        typer.Option("--import", help="A module that defines the operator; repeatable."),
    ] = None,
    samples: Annotated[
        str | None,
        typer.Option(
            help="module:name of a list of argument tuples, or of a function that returns one; "
            "default: made from a kernel operator's schema and contract."
        ),
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option("--skip", help="A check to leave out; repeatable.")
    ] = None,
    driver: Annotated[
        str | None, typer.Option(help="Load this driver and compare with its device, e.g. sim.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Check an operator. Exits with 0 if nothing fails, with 1 if a check does.

    Operators of installed packages and of BRINGUP_OPS_PATH are found without --import.
    """
    require_torch()
    from bringup import devices, kernels, ops, report

    here = str(Path.cwd())
    sys.path.insert(0, here)  # as `python -m` has it: modules of the current folder
    try:
        for module in modules or ():
            importlib.import_module(module)
        given = None if samples is None else _found(samples)
    finally:
        sys.path.remove(here)
    if operator.startswith("bringup::"):
        kernels.load()
    problems = ops.load_op_plugins().errors
    if driver is not None:
        devices.load_driver(driver)
    for problem in problems:
        what = str(problem).partition("\n")[0]
        typer.echo(f"{what}; `bringup doctor` shows its traceback", err=True)
    result = ops.check(operator, given, skip=skip or ())
    columns = [
        report.Column("check", fixed=True),
        report.Column("outcome", fixed=True),
        report.Column("reason"),
    ]
    table = report.Table(result.operator, columns)
    for row in result.rows:
        table.add(row.name, row.outcome.value, row.reason)
    table.notes.append(f"{len(result.failures)} failures; samples: {result.samples}")
    console = console_for(json_file)
    report.render(table, console)
    rows = [
        {"name": row.name, "outcome": row.outcome.value, "reason": row.reason}
        for row in result.rows
    ]
    found = {"operator": result.operator, "samples": result.samples, "rows": rows}
    write_results(json_file, found, console)
    if result.failures:
        raise typer.Exit(1)


def _found(place: str) -> Any:
    module, separator, name = place.partition(":")
    if not separator:
        raise typer.BadParameter(f"{place!r}: expected module:name", param_hint="--samples")
    loaded = importlib.import_module(module)
    if not hasattr(loaded, name):
        raise typer.BadParameter(
            f"{module} has no attribute {name!r}; expected a list of argument tuples there",
            param_hint="--samples",
        )
    return getattr(loaded, name)
