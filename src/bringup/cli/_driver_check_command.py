"""`bringup driver check`: does a driver keep what `bringup/driver.h` asks of it?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from bringup import devices, jit, report
from bringup.cli._columns import fixed, texts
from bringup.cli._exit_codes import ExitCode
from bringup.cli._requirements import JsonFile, console_for, write_results
from bringup.devices._driver_check import KERNELS
from bringup.errors import CompileError, MissingCompilerError, first_line

_SHOWN_CALLS = 24


def check(
    driver: Annotated[
        str | None,
        typer.Argument(help="A driver's shared library, or a driver's name, e.g. sim."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="A check, a group of checks, or a function; repeatable."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show what is checked, and stop.")] = False,
    limit: Annotated[
        float, typer.Option("--limit", min=0.1, help="Seconds that each check may take.")
    ] = 20.0,
    json_file: JsonFile = None,
) -> None:
    """Test a driver in processes of its own, each check in another. Exit code 0: it breaks no rule,
    1: it does, crashes, hangs or cannot be loaded.

    torch is not needed. Checks of functions that the driver does not have are skipped.
    """
    if list_:
        _list(json_file)
        return
    if driver is None:
        raise typer.BadParameter("name a driver's library", param_hint="DRIVER")
    library = devices.driver_library(driver)
    kernels, no_kernels = _kernels()
    try:
        found = devices.check_driver(library, only=only or (), kernels=kernels, check_seconds=limit)
    except ValueError as error:
        raise typer.BadParameter(f"{error}; --list shows them", param_hint="--only") from None
    console = console_for(json_file)
    _show(found, console)
    if no_kernels:
        console.print(no_kernels, markup=False, soft_wrap=True)
    write_results(json_file, vars(found), console)
    if found.failure or found.failures:
        raise typer.Exit(ExitCode.FAILED)


def _kernels() -> tuple[Path | None, str]:
    """Return the device code of the checks, for devices that run host code, or why not."""
    source = jit.Source(KERNELS, entry="check_accumulate")
    try:
        return jit.compile(source, target="cpu").path, ""
    except (CompileError, MissingCompilerError) as error:
        first = first_line(error)
        return None, f"The checks that launch device code are skipped, it cannot be built: {first}"


def _list(json_file: Path | None) -> None:
    known = devices.list_checks()
    rows: list[tuple[str, ...]] = [(one.name, one.function, one.rule) for one in known]
    columns = [*fixed("check"), *texts("function", "rule")]
    console = console_for(json_file)
    report.render(report.Table("What is checked", columns, rows), console)
    write_results(json_file, {"checks": known}, console)


def _show(found: devices.DriverCheck, console: Console) -> None:
    if found.failure:
        failure = Text(f"{found.path} cannot be used: {found.failure}", style="red")
        console.print(failure, soft_wrap=True)
        return
    columns = [*fixed("function"), *texts("rule", "result")]
    table = report.Table(f"{found.device_name}: {found.description}", columns)
    for result in found.results:
        shown = result.outcome.upper() if result.outcome == "fail" else result.outcome
        reason = f": {result.reason}" if result.outcome == "skipped" else ""
        table.add(result.function, result.rule, f"{shown}{reason}")
    passed = sum(result.outcome == "pass" for result in found.results)
    skipped = sum(result.outcome == "skipped" for result in found.results)
    table.notes.append(f"{passed} pass, {len(found.failures)} fail, {skipped} skipped")
    report.render(table, console)
    for result in found.failures:
        _show_failure(result, console)


def _show_failure(result: devices.CheckResult, console: Console) -> None:
    console.print(Text(f"\n{result.name}: {result.reason}", style="red"), soft_wrap=True)
    lines = [f"rule: {result.rule}", f"expected: {result.expected}", f"got: {result.got}"]
    left_out = max(len(result.calls) - _SHOWN_CALLS, 0)
    lines.append("calls:" if not left_out else f"calls (the last {_SHOWN_CALLS}; --json has more):")
    lines += [f"  {call}" for call in result.calls[left_out:]]
    for line in lines:
        console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
