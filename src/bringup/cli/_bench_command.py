"""`bringup bench`: an operator's speed by size, beside what the machine can do and its peers."""

from __future__ import annotations

import difflib
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bringup import report
from bringup.cli._exit_codes import ExitCode
from bringup.cli._requirements import HtmlFile, JsonFile, Output, require_torch

if TYPE_CHECKING:
    import torch

    from bringup.cli.bench.measure import Row

_PART = 16  # of the free memory that a call may fill; its copies take as much again


def bench(
    operator: Annotated[
        str, typer.Argument(metavar="MODULE:OP", help="Or file.py:OP, or namespace::name.")
    ],
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=MODULE:FUNCTION",
            help="A peer that takes the same arguments; repeatable. The first one, called eager "
            "unless it is named, says what is right.",
        ),
    ] = None,
    shapes: Annotated[
        str | None,
        typer.Option(
            help="Of the first tensor: 1024,64x1024; one number is how many elements. Default: "
            "from the first cache to twice the last one."
        ),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Default: float32.")] = None,
    inputs: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Makes the arguments from the sizes: a tuple, or (args, kwargs). Default: they "
            "follow from a kernel operator's contract.",
        ),
    ] = None,
    flops: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER|MODULE:FUNCTION",
            help="Operations: for each element of the result, or of a call's arguments. Default: "
            "those of the first peer's matrix products, convolutions and attentions.",
        ),
    ] = None,
    moved: Annotated[
        str | None,
        typer.Option(
            "--bytes",
            metavar="MODULE:FUNCTION",
            help="Bytes of a call, from its arguments. Default: each tensor once.",
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(min=0, help="Of results, relative and absolute. Default: by dtype."),
    ] = None,
    inductor: Annotated[
        bool, typer.Option("--inductor/--no-inductor", help="Compile the first peer, too.")
    ] = True,
    seconds: Annotated[
        float, typer.Option(min=0, help="How long a size may be timed while it is too noisy.")
    ] = 2.0,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Default: torch's number, or 1 if faster.")
    ] = None,
    compare: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What --json wrote on this machine before.")
    ] = None,
    json_file: JsonFile = None,
    html_file: HtmlFile = None,
) -> None:
    """Time an operator by size on cpu: GB/s and FLOP/s, against the machine and against peers.

    Results are compared with those of the first peer before anything is timed.

    Exit code 0: it was timed; 1: a result is wrong, a size is slower than in the file of --compare
    beyond the noise, or it cannot be timed; 2: the command line cannot be understood, or the file
    of --compare is another machine's; 130: interrupted, with the sizes that were timed until then.
    """
    require_torch()
    import torch

    from bringup.cli.bench.measure import OtherRunError, compared, earlier, measure, product_gflops
    from bringup.cli.bench.show import Run, as_json, page, table
    from bringup.cli.bench.subject import Subject, sweep
    from bringup.cli.trial.threads import thread_count
    from bringup.cli.trial.timing import Limits

    kind = None if dtype is None else _dtype(dtype)
    memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _PART
    subject = Subject(
        operator,
        against or (),
        inductor=inductor,
        dtype=kind,
        inputs=inputs,
        flops=flops,
        moved=moved,
        tolerance=tolerance,
        memory=math.inf if shapes else memory,
    )
    wanted = _shapes(shapes) if shapes else sweep((kind or torch.float32).itemsize, memory)
    out = Output(json_file, html_file)
    with thread_count(threads) as words:
        subject.notes += [words] if words else []
        try:
            before = {} if compare is None else earlier(compare, subject.name)
        except OtherRunError as error:
            raise typer.BadParameter(str(error), param_hint="--compare") from error
        rows: list[Row] = []
        is_interrupted = False
        try:
            for shape in wanted:
                rows.append(compared(measure(subject, shape, Limits(seconds)), before))
                out.say(f"... {rows[-1].shape}: {rows[-1].gbs:.3g} GB/s")
        except (MemoryError, KeyboardInterrupt) as error:
            if not rows:
                raise
            is_interrupted = isinstance(error, KeyboardInterrupt)
            subject.notes.append(f"{'interrupted' if is_interrupted else error}: no larger size")
        product = product_gflops(rows[0].dtype) if any(row.flops for row in rows) else 0.0
        run = Run(subject.name, rows, product, subject.notes, is_interrupted)
        out.console.print(f"\n{run.headline}", style="bold", markup=False, highlight=False)
        report.render(table(run), out.console)
        out.results(as_json(run))
        out.page(page(run))
    if is_interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if compare is not None and not any(row.before for row in rows):
        raise typer.BadParameter(f"{compare} has none of these sizes", param_hint="--compare")
    if any(row.is_slower for row in rows):
        raise typer.Exit(ExitCode.FAILED)


def _shapes(text: str) -> list[tuple[int, ...]]:
    try:
        shapes = [tuple(map(int, shape.split("x"))) for shape in text.split(",")]
    except ValueError:
        shapes = [()]
    if not all(shape and min(shape) > 0 for shape in shapes):
        raise typer.BadParameter(
            f"{text!r}: expected sizes such as 1024,64x1024", param_hint="--shapes"
        )
    return shapes


def _dtype(name: str) -> torch.dtype:
    import torch

    found = getattr(torch, name, None)
    if isinstance(found, torch.dtype):
        return found
    known = [other for other, value in vars(torch).items() if isinstance(value, torch.dtype)]
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}?" if near else "expected one such as float32, bfloat16, int8"
    raise typer.BadParameter(f"torch has no dtype {name!r}; {hint}", param_hint="--dtype")
