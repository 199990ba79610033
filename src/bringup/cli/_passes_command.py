"""`bringup passes`: which graph passes there are, why one does not match, which one is wrong, and
what repeats in a model.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from bringup import passes
from bringup.cli._needs import JsonFile, console_for, require_torch, say, write_results
from bringup.errors import BringupError

__all__ = ["bisect", "explain", "list_", "mine"]

FOUND = 3
PASS_FAILED = 4

Target = Annotated[
    str,
    typer.Argument(
        metavar="PATH|module:factory|FILE.pt2|FILE.onnx",
        help="A Hugging Face folder, a factory, an exported program, or an ONNX model.",
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Option("--pass", help="A pass, also as name@version; repeatable. Default: all."),
]
Places = Annotated[
    list[str] | None,
    typer.Option(
        "--path",
        help="A file or folder with passes, or several with : between them, besides those shipped "
        "and on BRINGUP_PASS_PATH; repeatable.",
    ),
]


def places_of(given: list[str] | None) -> list[str]:
    """The files and folders of `--path`, which may hold several, as the environment's path does."""
    return [place for item in given or () for place in item.split(os.pathsep) if place]


def list_(path: Places = None, json_file: JsonFile = None) -> None:
    """List the registered passes: kind, stage, priority, version, and whether each is on.

    Exit code 0: listed; 3: a plugin could not be loaded.
    """
    from bringup.cli.explain.listing import as_json_of, registered_rows, show_list

    errors = [str(error) for error in passes.load_pass_plugins(*places_of(path)).errors]
    rows = registered_rows()
    console = console_for(json_file)
    show_list(console, rows)
    for error in errors:
        typer.echo(error, err=True)
    write_results(json_file, as_json_of(rows, errors), console)
    if errors:
        raise typer.Exit(FOUND)


def explain(
    target: Target,
    names: Names = None,
    path: Places = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Run every rewrite against what it replaces.")
    ] = False,
    dump: Annotated[
        Path | None, typer.Option(help="Folder for the graphs before and after every pass.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Say what passes do to a model: matches, times, and how close each came where it did nothing.

    Exit code 0: something was rewritten, with --pass by each of those; 3: nothing was; 4: a pass
    failed or is wrong; 1: the model cannot be loaded or run, or there is no such pass.
    """
    require_torch()
    from bringup.cli.explain.model import load_model
    from bringup.cli.explain.run import explain as explain_model
    from bringup.cli.explain.show import explanation_as_json, show_explanation

    _load(path, names)
    options: dict[str, object] = {"verify": verify}
    if dump is not None:
        options["dump_passes"] = str(dump)
    found = explain_model(load_model(target), names, options)
    console = console_for(json_file)
    show_explanation(console, found)
    write_results(json_file, explanation_as_json(found), console)
    if found.has_failed:
        raise typer.Exit(PASS_FAILED)
    if not found.has_rewritten(every=names is not None):
        raise typer.Exit(FOUND)


def bisect(
    target: Target,
    names: Names = None,
    path: Places = None,
    tolerance: Annotated[
        float, typer.Option(help="How far results may be apart, relative to the largest value.")
    ] = 1e-3,
    json_file: JsonFile = None,
) -> None:
    """Find the first rewrite with which the model's result differs from eager's, by halving.

    Exit code 0: the result is right; 3: the rewrite was found; 1: the result is wrong without any
    rewrite, or the model cannot be loaded or run.
    """
    require_torch()
    from bringup.cli.explain.model import load_model
    from bringup.cli.explain.run import bisect as bisect_model
    from bringup.cli.explain.show import bisection_as_json, show_bisection

    _load(path, names)
    console = console_for(json_file)
    found = bisect_model(
        load_model(target),
        names,
        tolerance=tolerance,
        on_step=lambda words: console.print(f"... {words}", markup=False),
    )
    show_bisection(console, found)
    write_results(json_file, bisection_as_json(found), console)
    if found.first_bad is not None:
        raise typer.Exit(FOUND if found.first_bad else 1)


def mine(
    target: Target,
    most: Annotated[int, typer.Option(help="How many parts of each graph are shown.")] = 10,
    max_nodes: Annotated[int, typer.Option(help="The largest part, from 2 to 16 nodes.")] = 8,
    min_count: Annotated[int, typer.Option(help="How often a part must occur, from 2.")] = 2,
    max_outputs: Annotated[
        int, typer.Option(help="How many values may be read of a part outside.")
    ] = 1,
    json_file: JsonFile = None,
) -> None:
    """Show what repeats in a model: operators that one operator could replace in many places, each
    with a pattern to paste into a pass.

    Exit code 0: something repeats; 3: nothing does; 1: the model cannot be loaded or run, or a
    number is out of bounds.
    """
    require_torch()
    from bringup import compiler
    from bringup.cli.explain.model import load_model

    numbers = {"most": most, "max_nodes": max_nodes, "min_count": min_count}
    found = [
        compiler.mine(graph, **numbers, max_outputs=max_outputs)
        for graph in load_model(target).graphs()
    ]
    for one in found:
        say(json_file, str(one))
    results = {"model": target, "graphs": [one.as_dict() for one in found]}
    write_results(json_file, results, console_for(json_file))
    if not any(one.repeats for one in found):
        raise typer.Exit(FOUND)


def _load(path: list[str] | None, names: list[str] | None) -> None:
    loaded = passes.load_pass_plugins(*places_of(path))
    for error in loaded.errors:
        typer.echo(str(error), err=True)
    if not passes.select_passes(names):
        raise BringupError(
            "there are no passes to run: BRINGUP_PASS_SWITCH or BRINGUP_PASS_LIBRARY leaves none; "
            "name a folder with --path or BRINGUP_PASS_PATH"
        )
