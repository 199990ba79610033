"""`bringup driver check`: does a driver keep what `bringup/driver.h` asks of it?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from bringup import devices, jit, report
from bringup.cli._exit_codes import ExitCode
from bringup.cli._requirements import HtmlFile, JsonFile, Output
from bringup.devices._driver_check import KERNELS, SHOWN_CALLS, check_kernels, page, verdict
from bringup.errors import CompileError, MissingCompilerError, first_line
from bringup.report._columns import fixed, texts


def check(
    driver: Annotated[
        str | None, typer.Argument(help="A driver's shared library, or a driver's name, e.g. sim.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="NAME", help="A check, a group of checks, or a function; repeatable."
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show what is checked, and stop.")] = False,
    limit: Annotated[
        float,
        typer.Option(
            "--limit", metavar="SECONDS", min=0.1, help="Seconds that each check may take."
        ),
    ] = 20.0,
    kernels_file: Annotated[
        Path | None,
        typer.Option(
            "--kernels",
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Device code of the checks, as the driver's module_load takes it; without it "
            "what the driver's package brings.",
        ),
    ] = None,
    json_file: JsonFile = None,
    html_file: HtmlFile = None,
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
    own = kernels_file or check_kernels(driver)
    kernels, no_kernels = _kernels() if own is None else (None, "")
    try:
        found = devices.check_driver(
            library, only=only or (), kernels=kernels, device_kernels=own, check_seconds=limit
        )
    except ValueError as error:
        raise typer.BadParameter(f"{error}; --list shows them", param_hint="--only") from None
    out = Output(json_file, html_file)
    _show(found, out.console)
    if no_kernels:
        out.console.print(no_kernels, markup=False, soft_wrap=True)
    out.results(vars(found))
    out.page(page(found))
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
    rows: list[tuple[str, ...]] = [(f"{one.name}\n  {one.function}", one.rule) for one in known]
    columns = [*fixed("check, function"), *texts("rule")]
    out = Output(json_file)
    report.render(report.Table("What is checked", columns, rows), out.console)
    out.results({"checks": known})


def _show(found: devices.DriverCheck, console: Console) -> None:
    if found.failure:
        console.print(Text(verdict(found), style="red"), soft_wrap=True)
        return
    passed = [result.function for result in found.results if result.outcome == "pass"]
    skipped = [result for result in found.results if result.outcome == "skipped"]
    console.print(Text(f"{found.device_name}: {found.description}", style="bold"))
    console.print(verdict(found), highlight=False)
    for result in found.failures:
        _show_failure(result, console)
    if passed:
        counts = Counter(passed).items()
        names = ", ".join(name if count == 1 else f"{name}×{count}" for name, count in counts)
        console.print(f"\nPassed, by function: {names}", markup=False, highlight=False)
    for reason, ones in _by_reason(skipped).items():
        console.print(f"\nSkipped, {reason}: {', '.join(ones)}", markup=False, highlight=False)
    console.print("\n--list shows the rules.", highlight=False)


def _by_reason(skipped: Sequence[devices.CheckResult]) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for result in skipped:
        reasons.setdefault(result.reason, []).append(result.name)
    return reasons


def _show_failure(result: devices.CheckResult, console: Console) -> None:
    console.print(Text(f"\nFAIL {result.name}: {result.reason}", style="red"), soft_wrap=True)
    lines = [f"rule: {result.rule}", f"expected: {result.expected}", f"got: {result.got}"]
    left_out = max(len(result.calls) - SHOWN_CALLS, 0)
    lines.append("calls:" if not left_out else f"calls (the last {SHOWN_CALLS}; --json has more):")
    lines += [f"  {call}" for call in result.calls[left_out:]]
    for line in lines:
        console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
