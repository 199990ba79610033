"""`bringup demo`: a real model from plain PyTorch to captured graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bringup.cli._exit_codes import ExitCode
from bringup.cli._requirements import HtmlFile, JsonFile, Output, require_torch


def demo(
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            help="Your own sentences, one per line.",
            exists=True,
            dir_okay=False,
            readable=True,
        ),
    ] = None,
    text: Annotated[
        str | None, typer.Option("--text", help="Your own text, one sentence per line.")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Few sentences and rounds, no Inductor, the model alone."),
    ] = False,
    freezing: Annotated[
        bool, typer.Option("--freezing", help="Compare with Inductor's `freezing` option too.")
    ] = False,
    seconds: Annotated[
        float, typer.Option(min=0, help="For the model; Inductor's compile has 60 more at most.")
    ] = 90.0,
    full: Annotated[
        bool, typer.Option("--full", help="Time all sentences, with as many rounds as they take.")
    ] = False,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Of every mode; default: torch's number, or 1 if faster."),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option("--device", help="cpu or npu; may be given twice. Default: both."),
    ] = None,
    json_file: JsonFile = None,
    html_file: HtmlFile = None,
) -> None:
    """Make a C function an operator and a new driver a device; then run all-MiniLM-L6-v2 eagerly,
    fused, captured, and through Inductor, and compare them.

    Exit code 0: all embeddings agree with eager, 1: a cosine is below 0.9999 or a check failed,
    130: interrupted, with what was measured until then.
    """
    if file is not None and text is not None:
        raise typer.BadParameter("give --file or --text, not both")
    if quick and freezing:
        raise typer.BadParameter("--freezing needs Inductor, which --quick leaves out")
    chosen = tuple(dict.fromkeys(device or ("cpu", "npu")))
    if unknown := set(chosen) - {"cpu", "npu"}:
        raise typer.BadParameter(f"--device {sorted(unknown)[0]}: expected cpu or npu")
    if quick and full:
        raise typer.BadParameter("give --quick or --full, not both")
    require_torch()
    from bringup.cli.demo.run import DemoOptions, run_demo
    from bringup.cli.demo.show import as_json, page, show

    out = Output(json_file, html_file)
    acts = not quick and file is None and text is None
    options = DemoOptions(file, text, quick, freezing, seconds, full, acts, threads, chosen)
    result = run_demo(options, out.console)
    show(out.console, result)
    for failure in result.failures:
        out.console.print(f"FAILED: {failure}", style="red", markup=False)
    out.results(as_json(result))
    out.page(page(result))
    out.console.print("\nnext: bringup try your_model:make", markup=False, highlight=False)
    if result.is_interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if result.failures:
        raise typer.Exit(ExitCode.FAILED)
