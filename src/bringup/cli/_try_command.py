"""`bringup try`: the user's own model, and what the kit can do for it."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Annotated

import typer

from bringup import passes
from bringup.cli._exit_codes import ExitCode
from bringup.cli._passes_command import Places, places_of
from bringup.cli._requirements import HtmlFile, JsonFile, Output, require_torch


def try_model(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER|module:factory",
            help="A Hugging Face folder, or a factory: module:make or file.py:make.",
        ),
    ],
    inductor: Annotated[
        bool, typer.Option("--inductor/--no-inductor", help="Compare with Inductor, freezing.")
    ] = True,
    inductor_seconds: Annotated[
        float, typer.Option(min=0, help="How long Inductor may compile before it is given up.")
    ] = 120.0,
    seconds: Annotated[
        float,
        typer.Option(min=0, help="How long one mode may be timed while it is too noisy to say."),
    ] = 10.0,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Of every mode; default: torch's number, or 1 if faster."),
    ] = None,
    path: Places = None,
    json_file: JsonFile = None,
    html_file: HtmlFile = None,
) -> None:
    """Try your own model in the modes default, serve and max: which passes match, what cannot be
    captured, time and error.

    A factory returns (model, example_inputs). The passes are those that bringup ships, those on
    BRINGUP_PASS_PATH, and those that --path names. What the model prints goes to standard error.

    Exit code 0: it was tried, whatever came out; 1: the model cannot be loaded or run at all; 130:
    interrupted, with what was measured until then.
    """
    require_torch()
    from bringup.cli.trial.run import TrialOptions, try_subject
    from bringup.cli.trial.show import as_json, line_text, page, show
    from bringup.cli.trial.threads import thread_count
    from bringup.cli.trial.timing import Limits
    from bringup.cli.trial.trial_model import load_subject

    out = Output(json_file, html_file)
    with redirect_stdout(sys.stderr):
        subject = load_subject(target)
    for error in passes.load_pass_plugins(*places_of(path)).errors:
        typer.echo(str(error), err=True)

    def say(words: str) -> None:
        out.console.print(words, markup=False, highlight=False, soft_wrap=True)

    with thread_count(threads) as words:
        subject.notes += [words] if words else []
        trial = try_subject(
            subject,
            TrialOptions(inductor, inductor_seconds, Limits(seconds)),
            on_step=lambda words: say(f"... {words}"),
            on_line=lambda line: say(line_text(line)),
        )
    show(out.console, trial)
    out.results(as_json(trial))
    out.page(page(trial))
    if trial.is_interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
