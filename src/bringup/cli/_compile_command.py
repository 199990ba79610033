"""`bringup compile`: passes over a model's file, into a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bringup import passes
from bringup.cli._exit_codes import ExitCode
from bringup.cli._passes_command import Names, places_of
from bringup.cli._requirements import JsonFile, Output, require_torch
from bringup.errors import PassError
from bringup.passes import PassReport, PassStage

_COMPOSITE = (
    "An exported program keeps composite operators (aten::linear), and passes look for what they "
    "are made of (aten::addmm): --decompose takes them apart first."
)


def compile_(
    model: Annotated[
        Path, typer.Argument(metavar="FILE.onnx|FILE.pt2", help="What passes run over.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where the result goes; of the same kind.")
    ],
    names: Names = None,
    path: Annotated[
        list[str] | None,
        typer.Option(
            "--pass-path",
            help="A file or folder with passes, or several with : between them, besides those on "
            "BRINGUP_PASS_PATH; repeatable.",
        ),
    ] = None,
    module: Annotated[
        list[str] | None,
        typer.Option(
            "--pass-module", help="A module that registers passes when imported; repeatable."
        ),
    ] = None,
    stage: Annotated[
        list[PassStage] | None,
        typer.Option(
            "--stage",
            metavar="STAGE",
            help=f"Only the passes of this stage: {', '.join(PassStage)}; repeatable.",
        ),
    ] = None,
    library: Annotated[
        bool,
        typer.Option(
            "--library/--no-library",
            help="Also the passes that bringup ships for such models; see BRINGUP_PASS_LIBRARY.",
        ),
    ] = True,
    verify: Annotated[
        bool, typer.Option("--verify", help="Run every rewrite against what it replaces.")
    ] = False,
    fold: Annotated[
        bool, typer.Option("--fold", help="Compute once what constants of an ONNX model fix.")
    ] = False,
    decompose: Annotated[
        bool,
        typer.Option(
            "--decompose", help="Take composite operators of a .pt2 (aten::linear) apart first."
        ),
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Run passes over a model in a file, and write the result: whole, or not at all.

    ONNX models need no torch. A model that no pass changes comes back equal.

    Exit code 0: written; 3: written, and no pass changed it; 4: a pass failed or is wrong, and
    nothing was written; 1: the model or the passes cannot be loaded, or the result cannot be
    written.
    """
    if model.suffix == ".pt2":
        require_torch()
    from bringup import compiler
    from bringup.cli.explain.reports import OperatorWatch, reports_as_json, show_reports

    options: dict[str, object] = {"verify": verify, "fold": fold}
    out = Output(json_file)
    failure: PassError | None = None
    reports: list[PassReport] = []
    watch = OperatorWatch()
    try:
        with passes.subscribe(watch):
            reports = [
                compiler.compile_file(
                    model,
                    output,
                    names=names,
                    paths=places_of(path),
                    modules=module or (),
                    stages=stage,
                    library=library,
                    decompose=decompose,
                    options=options,
                )
            ]
    except PassError as error:
        failure = error
        last = compiler.last_report()
        reports = [] if last is None else [last]
    if any(found.results for found in reports):
        show_reports(out.console, str(model), reports, taken=watch.taken)
    else:
        out.say("No pass ran: none is registered and switched on for this kind of model.")
    results = {
        "model": str(model),
        "output": None if failure else str(output),
        "error": None if failure is None else str(failure),
        "graphs": reports_as_json(reports),
    }
    is_changed = any(one.folded or any(one.matches.values()) for one in reports)
    if failure is None:
        if model.suffix == ".pt2" and not (is_changed or decompose):
            out.console.print(_COMPOSITE, markup=False)
        out.say(f"Written: {output}{'' if is_changed else '; no pass changed it'}")
    else:
        out.console.print(
            f"{output} is not written: {failure}", markup=False, style="red", soft_wrap=True
        )
    out.results(results)
    if failure is not None:
        raise typer.Exit(ExitCode.PASS_FAILED)
    if not is_changed:
        raise typer.Exit(ExitCode.NOTHING)
