"""`bringup demo`: a real model from plain PyTorch to captured graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bringup import report
from bringup.cli._exit_codes import ExitCode
from bringup.cli._requirements import JsonFile, console_for, require_torch, write_results


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
        typer.Option("--quick", help="Few sentences and rounds, no Inductor; well under a minute."),
    ] = False,
    freezing: Annotated[
        bool,
        typer.Option("--freezing", help="Compare with Inductor's `freezing` option too."),
    ] = False,
    device: Annotated[
        list[str] | None,
        typer.Option("--device", help="cpu or npu; may be given twice. Default: both."),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Run all-MiniLM-L6-v2 eagerly, through Inductor, fused, and captured; compare them.

    Exit code 0: all embeddings agree with eager, 1: a cosine is below 0.9999 or a check failed.
    """
    if file is not None and text is not None:
        raise typer.BadParameter("give --file or --text, not both")
    if quick and freezing:
        raise typer.BadParameter("--freezing needs Inductor, which --quick leaves out")
    chosen = tuple(dict.fromkeys(device or ("cpu", "npu")))
    if unknown := set(chosen) - {"cpu", "npu"}:
        raise typer.BadParameter(f"--device {sorted(unknown)[0]}: expected cpu or npu")
    require_torch()
    from bringup.cli.demo.run import DemoOptions, run_demo
    from bringup.cli.demo.show import show

    console = console_for(json_file)
    result = run_demo(DemoOptions(file, text, quick, freezing, chosen), console)
    show(console, result.rows, result.nearest, result.notes)
    for failure in result.failures:
        console.print(f"FAILED: {failure}", style="red", markup=False)
    if json_file is not None:
        written = {
            **vars(result),
            "rows": [report.finite_fields(row) for row in result.rows],
            "nearest": [report.finite_fields(pair) for pair in result.nearest],
        }
        write_results(json_file, written, console)
    if result.failures:
        raise typer.Exit(ExitCode.FAILED)
