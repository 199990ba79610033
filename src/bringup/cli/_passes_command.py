"""`bringup passes`: which there are, why one does not match, what differs, and what repeats."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from bringup import passes, report, settings
from bringup.cli._exit_codes import ExitCode
from bringup.cli._requirements import HtmlFile, JsonFile, Output, require_torch
from bringup.errors import BringupError
from bringup.report._columns import fixed, names, numbers

if TYPE_CHECKING:
    from bringup.compiler.bisection import Bisection


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
    """Return the files and folders of `--path`, which may hold several as `$PATH` does."""
    return [place for item in given or () for place in item.split(os.pathsep) if place]


def list_(path: Places = None, json_file: JsonFile = None) -> None:
    """List the registered passes: kind, stage, priority, version, and whether each is on.

    Exit code 0: listed; 1: a plugin could not be loaded.
    """
    errors = [str(error) for error in passes.load_pass_plugins(*places_of(path)).errors]
    switches = settings.pass_switch()
    rows = [
        {**row, "on": passes.is_enabled(str(row["pass_name"]), switches)}
        for row in passes.get_registered_pass_dicts()
    ]
    out = Output(json_file)
    _show_list(out.console, rows)
    for error in errors:
        typer.echo(error, err=True)
    out.results({"passes": rows, "plugin_errors": errors})
    if errors:
        raise typer.Exit(ExitCode.FAILED)


def _show_list(console: Console, rows: Sequence[dict[str, object]]) -> None:
    columns = [*fixed("on"), *names("pass"), *fixed("stage"), *numbers("priority")]
    columns += [*fixed("kind", "version", spare=True), *names("defined by", least=24)]
    table = report.Table("Registered passes, as they run", columns)
    for row in rows:
        place = f"{row['module_name']}.{row['class_qualname']}"
        keys = ("pass_name", "stage", "priority", "kind", "version")
        state = "on" if row["on"] else "off"
        table.add(state, *(str(row[key]) for key in keys), place)
    report.render(table, console)


def explain(
    target: Target,
    names: Names = None,
    path: Places = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Run every rewrite against what it replaces.")
    ] = False,
    dump: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="For the graphs before and after every pass."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Show every pass and pattern, however far from a match.")
    ] = False,
    json_file: JsonFile = None,
    html_file: HtmlFile = None,
) -> None:
    """Say what passes do to a model: matches, times, and how close each came where it did nothing.

    Exit code 0: something was rewritten, with --pass by each of those; 3: nothing was; 4: a pass
    failed or is wrong; 1: the model cannot be loaded or run, or there is no such pass.
    """
    require_torch()
    from tempfile import TemporaryDirectory

    from bringup.cli.explain.model import load_model
    from bringup.cli.explain.run import explain as explain_model
    from bringup.cli.explain.show import explanation_as_json, explanation_page, show_explanation

    _load(path, names)
    options: dict[str, object] = {"verify": verify}
    with TemporaryDirectory() as scratch:
        folder = dump or settings.pass_dump() or Path(scratch)
        if dump is not None or html_file is not None:
            options["dump_passes"] = str(folder)
        found = explain_model(load_model(target), names, options)
        out = Output(json_file, html_file)
        show_explanation(out.console, found, every=every)
        out.results(explanation_as_json(found))
        if html_file is not None:
            out.page(explanation_page(found, folder))
    if found.has_failed:
        raise typer.Exit(ExitCode.PASS_FAILED)
    if not found.has_rewritten(every=names is not None):
        raise typer.Exit(ExitCode.NOTHING)


def bisect(
    target: Target,
    mode: Annotated[
        str, typer.Option(help="What the model is compiled with: default, serve or max.")
    ] = "default",
    dynamic: Annotated[
        bool, typer.Option("--dynamic", help="Compile it with symbolic sizes.")
    ] = False,
    names: Names = None,
    path: Places = None,
    atol: Annotated[
        float | None, typer.Option(min=0, help="How far results may be apart; with --rtol.")
    ] = None,
    rtol: Annotated[
        float | None, typer.Option(min=0, help="The same, relative to what eager gives.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Find what makes a model's result differ from eager's: freezing, the first wrong rewrite of
    a pass, narrow weights, or the capture.

    The model is compiled with these parts added one after the other, as far as the mode has them;
    rewrites are halved. What was found is switched off, and the search goes on. Tolerances are
    those of torch.testing.assert_close, and in mode max 1.6 % of the largest value.

    Exit code 0: nothing differs; 1: something does; 2: it cannot be asked: no such model or pass, a
    model that does not run, an option that it cannot have.
    """
    require_torch()
    out = Output(json_file)
    with _usage_errors():
        if (atol is None) != (rtol is None):
            raise BringupError("--atol and --rtol go together")
        _load(path, names)
        found = _bisected(
            target,
            names,
            mode,
            dynamic,
            None if atol is None or rtol is None else (atol, rtol),
            lambda words: out.console.print(f"... {words}", markup=False, soft_wrap=True),
        )
    from bringup.cli.explain.show import bisection_as_json, show_bisection

    show_bisection(out.console, found)
    out.results(bisection_as_json(target, found))
    if found.culprits:
        raise typer.Exit(ExitCode.FAILED)


def _bisected(
    target: str,
    names: list[str] | None,
    mode: str,
    dynamic: bool,
    tolerance: tuple[float, float] | None,
    on_step: Callable[[str], object],
) -> Bisection:
    import torch

    from bringup import compiler
    from bringup.cli.explain.model import load_model
    from bringup.cli.explain.run import RewritesOf
    from bringup.compiler.bisection import search

    model = load_model(target)
    if model.subject is None:
        if mode != "default" or dynamic:
            raise BringupError(
                f"--mode and --dynamic are for what torch.compile takes, not {target}"
            )
        return search(RewritesOf(model, names, tolerance), on_step)
    atol, rtol = (None, None) if tolerance is None else tolerance
    with torch.no_grad():
        return compiler.bisect(
            model.subject.model,
            model.subject.kwargs or model.subject.args,
            mode=mode,
            options={"passes": names},
            dynamic=dynamic or None,
            atol=atol,
            rtol=rtol,
            on_step=on_step,
        )


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Turn errors in the question, not in the answer, into usage errors."""
    try:
        yield
    except Exception as error:
        raise typer.BadParameter(f"{type(error).__name__}: {error}") from error


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
    out = Output(json_file)
    for one in found:
        out.say(str(one))
    out.results({"model": target, "graphs": [one.as_dict() for one in found]})
    if not any(one.repeats for one in found):
        raise typer.Exit(ExitCode.NOTHING)


def _load(path: list[str] | None, names: list[str] | None) -> None:
    loaded = passes.load_pass_plugins(*places_of(path))
    for error in loaded.errors:
        typer.echo(str(error), err=True)
    if not passes.select_passes(names):
        raise BringupError(
            "there are no passes to run: BRINGUP_PASS_SWITCH or BRINGUP_PASS_LIBRARY leaves none; "
            "name a folder with --path or BRINGUP_PASS_PATH"
        )
