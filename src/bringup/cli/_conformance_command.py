"""`bringup conformance`: how much of torch a device does right, natively and in all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from bringup import report, settings
from bringup.cli._compare_command import print_lines
from bringup.cli._exit_codes import ExitCode
from bringup.cli._requirements import ExecutorAddress, HtmlFile, JsonFile, Output, require_torch
from bringup.cli._simulator import Operators, load_function, whose_kernels

if TYPE_CHECKING:
    from bringup.conformance import CaseResult, Conformance


_SHOWN = 20


def conformance(
    driver: Annotated[
        str | None, typer.Option(help="A driver's library or name; default: BRINGUP_DRIVER, sim.")
    ] = None,
    load: Annotated[
        str,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Called in each process once the driver is loaded: kernels of a package.",
        ),
    ] = "",
    operators: Operators = True,
    level: Annotated[
        int,
        typer.Option(
            min=0,
            max=4,
            help="0: driver; 1: and runtime; 2: and operators and modules; 3: and compile, AMP, "
            "graphs, DDP, FSDP2; 4: and models that train.",
        ),
    ] = 2,
    pattern: Annotated[
        str, typer.Option("--filter", help="Cases by name, as in a shell: 'op/*conv*/float32'.")
    ] = "*",
    every: Annotated[int, typer.Option(min=1, help="Each so-and-so-manieth case only.")] = 1,
    samples: Annotated[
        int, typer.Option(min=1, help="Inputs of an operator and dtype, at most.")
    ] = 10,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="What one case may take; then its process is ended.")
    ] = 60.0,
    workers: Annotated[int, typer.Option(min=1, help="Processes at a time.")] = 1,
    executor: ExecutorAddress = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Take over the cases of the last run.")
    ] = False,
    baseline: Annotated[
        Path | None,
        typer.Option(help="What an earlier run wrote with --json: what is worse is shown."),
    ] = None,
    json_file: JsonFile = None,
    html_file: HtmlFile = None,
) -> None:
    """Test a device: its driver, the runtime, torch's own operator, module and optimizer samples
    against the CPU, and what is done with it as a whole. Each case runs in a process that may
    crash.

    The headline is what the device does itself; what falls back to the host counts beside it. A
    refusal is no pass.

    Exit code 0: every case passes, or none is worse than in the baseline, 1: otherwise; 130:
    interrupted, with what was known until then (--resume goes on).
    """
    require_torch()
    from bringup import conformance as suite
    from bringup.conformance.conformance_page import page

    out = Output(json_file, html_file)
    known = None if baseline is None else suite.read_baseline(baseline)

    def show(result: CaseResult, done: int, of: int) -> None:
        if result.outcome not in ("pass", "skipped") or done == of or not done % 100:
            line = f"{done} of {of}: {result.id} {result.outcome}"
            line += f": {result.reason}" if result.outcome != "pass" and result.reason else ""
            print_lines([line], out.console)

    name = driver or settings.driver() or "sim"
    kernels = load or (load_function(name) if operators else "")
    whose = "" if load else whose_kernels(name, loaded=bool(kernels))
    found = suite.run_conformance(
        name,
        load=kernels,
        level=level,
        pattern=pattern,
        every=every,
        samples=samples,
        seconds=seconds,
        workers=workers,
        executor=executor,
        resume=resume,
        baseline=known,
        on_result=show,
    )
    _show(found, baseline, whose, out.console)
    out.results(as_json(found))
    out.page(page(found, whose))
    if found.is_interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if found.not_passed if baseline is None else found.regressions:
        raise typer.Exit(ExitCode.FAILED)


def _show(found: Conformance, baseline: Path | None, whose: str, console: Console) -> None:
    from bringup.conformance.conformance_page import headline, outcomes_table

    print_lines([*headline(found), *filter(None, [whose])], console)
    report.render(outcomes_table(found), console)
    if found.resumed:
        print_lines([f"{found.resumed} cases are from the last run"], console)
    if baseline is not None:
        print_lines([f"{len(found.regressions)} cases are worse than in {baseline}"], console)
        worse = [f"  {case}: {then} -> {now}" for case, then, now in found.regressions[:_SHOWN]]
        print_lines(worse, console)


def as_json(found: Conformance) -> dict[str, object]:
    from bringup.conformance.conformance_page import scores

    return {
        "facts": found.facts,
        "interrupted": found.is_interrupted,
        "scores": {name: vars(score) for name, score in scores(found).items()},
        "regressions": [
            {"id": case, "then": then, "now": now} for case, then, now in found.regressions
        ],
        "results": [vars(one) for one in found.results],
    }
