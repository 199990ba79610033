"""`bringup driver`: what a driver does, without torch."""

from __future__ import annotations

import os
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from bringup import devices, settings
from bringup._processes import ending
from bringup.cli._exit_codes import ExitCode
from bringup.cli._requirements import JsonFile, Output

TraceFile = Annotated[Path, typer.Argument(metavar="FILE", help="The trace.")]


def trace(
    file: TraceFile,
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="Behind --: what to run.")
    ],
    payload: Annotated[
        bool, typer.Option("--payload", help="Keep what is copied, so that a replay can be exact.")
    ] = False,
    limit: Annotated[
        str, typer.Option(help="Bytes on disk, also with K, M or G; 0: no limit.")
    ] = "4G",
) -> None:
    """Run a program and write every call of its driver: bringup driver trace FILE -- COMMAND...

    Exit code: the program's, 1 where it was ended by a signal or cannot be started.
    """
    try:
        bound = settings.size(limit)
    except ValueError as error:
        raise typer.BadParameter(f"{limit!r}: {error}", param_hint="--limit") from None
    asked = settings.driver_trace_environment(settings.DriverTrace(file.absolute(), payload, bound))
    file.unlink(missing_ok=True)  # so that what is there afterwards is this program's
    try:
        done = subprocess.run(command, env={**os.environ, **asked}, check=False)
    except OSError as error:
        raise typer.BadParameter(
            f"{command[0]} cannot be started: {error.strerror or error}", param_hint="COMMAND"
        ) from None
    if not file.exists():
        typer.echo(f"{file} was not written: the program loaded no driver", err=True)
    if done.returncode < 0:
        typer.echo(f"{command[0]} ended with {ending(done.returncode)}", err=True)
        raise typer.Exit(ExitCode.FAILED)
    raise typer.Exit(done.returncode)


def replay(
    file: TraceFile,
    driver: Annotated[
        str, typer.Argument(help="A driver's library, or its name: it makes the calls.")
    ],
    timeout: Annotated[float, typer.Option(help="Seconds that one call may take.")] = 30.0,
    json_file: JsonFile = None,
) -> None:
    """Make the calls of a trace on a driver, in a process without torch, and compare its answers.

    Exit code 0: all answers are those of the trace, 1: one differs, or the driver crashed or hung;
    the first is shown.
    """
    if timeout <= 0:
        raise typer.BadParameter("expected more than 0 seconds", param_hint="--timeout")
    report = devices.replay_trace(file, driver, timeout)
    out = Output(json_file)
    found = report.difference
    out.say(f"{report.made} of {report.calls} calls made on {report.library}")
    out.say(f"{report.compared_copies} copies to the host compared")
    for reason, count in report.not_compared.items():
        out.say(f"{count} not compared: {reason}")
    for reason, count in report.left_out.items():
        out.say(f"{count} calls left out: {reason}")
    if report.trace_end:
        out.say(f"the trace is not whole: {report.trace_end}")
    if found is None:
        out.say("no difference")
    else:
        for line in found.before:
            out.say(f"  {line}")
        out.say(f"> {found.text}")
        out.say(f"  expected: {found.expected}")
        out.say(f"  got:      {found.got}")
        if found.words:
            out.say(f"  the driver says: {found.words}")
    out.results(asdict(report))
    if found is not None:
        raise typer.Exit(ExitCode.FAILED)
