"""`bringup check`: is an operator right in every way that torch may call it?"""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from bringup._processes import ending, started
from bringup.cli._exit_codes import ExitCode
from bringup.cli._requirements import JsonFile, Output, require_torch
from bringup.errors import first_line
from bringup.report._columns import fixed, texts


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
    in_process: Annotated[
        bool, typer.Option(help="Run here: a kernel that crashes then ends this process.")
    ] = False,
    progress: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Check an operator. Exit code 0: nothing fails, 1: a check does, or ends the process that it
    runs in.

    Operators of installed packages and of BRINGUP_OPS_PATH are found without --import.
    """
    require_torch()
    if not in_process:
        options = [f"--import={module}" for module in modules or ()]
        options += [f"--skip={name}" for name in skip or ()]
        options += [f"--samples={samples}"] * (samples is not None)
        options += [f"--driver={driver}"] * (driver is not None)
        options += [f"--json={json_file}"] * (json_file is not None)
        raise typer.Exit(_in_child(operator, options))
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
        what = first_line(problem)
        typer.echo(f"{what}; `bringup doctor` shows its traceback", err=True)
    result = ops.check(operator, given, skip=skip or (), watch=_writer(progress))
    table = report.Table(result.operator, [*fixed("check", "outcome"), *texts("reason")])
    for row in result.rows:
        table.add(row.name, row.outcome.value, row.reason)
    table.notes.append(f"{len(result.failures)} failures; samples: {result.samples}")
    out = Output(json_file)
    report.render(table, out.console)
    out.results(vars(result))
    if result.failures:
        raise typer.Exit(ExitCode.FAILED)


def _in_child(operator: str, options: list[str]) -> int:
    """Run the checks in a child; return its exit code. A signal is reported with the check."""
    with tempfile.TemporaryDirectory() as folder:
        progress = Path(folder) / "progress"
        command = [sys.executable, "-m", "bringup", "check", operator, *options]
        command += ["--in-process", f"--progress={progress}"]
        with started(command, output=None, errors=None) as child:
            code = child.wait()
        if code >= 0:
            return code
        running = progress.read_text().splitlines() if progress.exists() else []
    what = f"{running[-1]!r}" if running else "loading the operator"
    typer.echo(
        f"{operator}: the process ended with {ending(code)} in {what}. "
        "A kernel that reads or writes outside of its tensors does that: build it with "
        "BRINGUP_JIT_DEBUG=address, or leave the check out with --skip",
        err=True,
    )
    return ExitCode.FAILED


def _writer(progress: Path | None) -> Callable[[str], object] | None:
    """Write the name of each check into the file, one a line."""
    if progress is None:
        return None

    def write(name: str) -> None:
        with progress.open("a") as file:
            file.write(f"{name}\n")

    return write


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
