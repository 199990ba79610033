"""`bringup try`: the user's own model, and what the kit can do for it."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from bringup import passes, report
from bringup.cli._needs import JsonFile, require_torch
from bringup.cli._passes_command import Places

__all__ = ["try_model"]


def try_model(
    target: Annotated[
        str,
        typer.Argument(metavar="PATH|module:factory", help="A Hugging Face folder, or a factory."),
    ],
    inductor: Annotated[
        bool, typer.Option("--inductor/--no-inductor", help="Compare with Inductor.")
    ] = True,
    path: Places = None,
    json_file: JsonFile = None,
) -> None:
    """Try your own model: which passes match, whether it can be captured, time and error.

    A factory returns (model, example_inputs). The passes are those that bringup
    ships, those on BRINGUP_PASS_PATH, and those that --path names.

    Exit code 0: it was tried, whatever came out; 1: the model cannot be loaded or run at all.
    """
    require_torch()
    from bringup.cli.trial.run import try_subject
    from bringup.cli.trial.show import as_json, show
    from bringup.cli.trial.subject import load_subject

    console = Console()
    subject = load_subject(target)
    for error in passes.load_pass_plugins(*(path or ())).errors:
        typer.echo(str(error), err=True)
    trial = try_subject(
        subject,
        inductor=inductor,
        on_step=lambda words: console.print(f"... {words}", markup=False),
    )
    show(console, trial)
    if json_file is not None:
        report.write_json(json_file, as_json(trial))
        console.print(f"Written: {json_file}", markup=False)
