"""`bringup cache prebuild`: kernels that a run recorded, built before the next one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bringup.cli._exit_codes import ExitCode
from bringup.cli._requirements import ExecutorAddress, JsonFile, Output


def prebuild(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="Of specs, written by jit.record or jit.save_specs."),
    ],
    workers: Annotated[
        int | None, typer.Option("--workers", help="Compilers at a time; default: processors.")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option("--target", help="Build for this instead of the specs' own; repeatable."),
    ] = None,
    executor: ExecutorAddress = None,
    json_file: JsonFile = None,
) -> None:
    """Build all kernels of the files that the cache lacks. Exit code 1: one could not be built."""
    from bringup import jit

    specs = jit.load_specs(*files)
    done = jit.prebuild(specs, workers=workers, targets=target or None, executor=executor)
    out = Output(json_file)
    out.say(str(done))
    outcomes = [
        {
            "kernel": str(outcome.spec),
            "status": outcome.status,
            "key": outcome.key,
            "seconds": round(outcome.seconds, 4),
            "error": str(outcome.error or ""),
        }
        for outcome in done.outcomes
    ]
    out.results({"cache": str(jit.cache().root), "outcomes": outcomes})
    if done.failed:
        raise typer.Exit(ExitCode.FAILED)
