"""`bringup cache prebuild`: kernels that a run recorded, built before the next one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["prebuild"]


def prebuild(
    files: Annotated[
        list[Path], typer.Argument(help="Files of specs, written by jit.record or jit.save_specs.")
    ],
    workers: Annotated[
        int | None, typer.Option("--workers", help="Compilers at a time; default: processors.")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option("--target", help="Build for this instead of the specs' own; repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcomes as JSON.")] = False,
) -> None:
    """Build every kernel of FILES that the cache does not have. Exits with 1 if one fails."""
    from bringup import jit, report

    done = jit.prebuild(jit.load_specs(*files), workers=workers, targets=target or None)
    if as_json:
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
        typer.echo(report.to_json({"cache": str(jit.cache().root), "outcomes": outcomes}))
    else:
        typer.echo(str(done))
    if done.failed:
        raise typer.Exit(1)
