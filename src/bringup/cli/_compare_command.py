"""`bringup compare`: which operator of a model is wrong on a device, or in another form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from bringup import report
from bringup.cli._exit_codes import ExitCode
from bringup.cli._requirements import HtmlFile, JsonFile, Output
from bringup.cli._simulator import ForwardOnly, ModelTarget, Operators, loaded_model

if TYPE_CHECKING:
    from bringup.conformance import Comparison, OperatorDifference


def compare(
    target: ModelTarget,
    a: Annotated[
        str,
        typer.Option(
            "--a",
            metavar="SIDE",
            help="The side that is tested: a device, compiled, fused, captured.",
        ),
    ] = "npu",
    b: Annotated[
        str,
        typer.Option("--b", metavar="SIDE", help="The side that is believed: a device, or eager."),
    ] = "cpu",
    level: Annotated[
        str, typer.Option(help="op or module: what is compared on equal inputs.")
    ] = "op",
    isolate: Annotated[
        bool, typer.Option("--isolate", help="Each operator gets the other side's results.")
    ] = False,
    forward_only: ForwardOnly = False,
    limit: Annotated[
        float, typer.Option(min=0, help="The accumulated error up to which results are near.")
    ] = 1e-2,
    driver: Annotated[
        str | None, typer.Option(help="The driver of a device: a library or a name; default: sim.")
    ] = None,
    operators: Operators = True,
    json_file: JsonFile = None,
    html_file: HtmlFile = None,
) -> None:
    """Run a model on two devices, forward and backward, and name the first operator that is wrong
    on equal inputs; errors that only add up are told apart.

    A factory returns (model, example_inputs); the model stays in the mode that it gives it.

    Exit code 0: nothing is wrong, 1: an operator is, a side fails, or the results are far apart.
    """
    if level not in ("op", "module"):
        raise typer.BadParameter(f"{level!r}: expected op or module", param_hint="--level")
    out = Output(json_file, html_file)
    with loaded_model(target, (a, b), driver, operators) as (subject, whose):
        from bringup import conformance
        from bringup.conformance.compare_page import page, summary, tables

        found = conformance.compare(
            subject.model,
            subject.args,
            subject.kwargs,
            a=a,
            b=b,
            level=level,  # type: ignore[arg-type]
            isolate=isolate,
            backward=not forward_only,
            limit=limit,
        )
    found.notes[:0] = subject.notes
    lines = [*summary(found), *filter(None, [whose])]
    print_lines(lines, out.console)
    for table in tables(found):
        report.render(table, out.console)
    out.results(as_json(target, found))
    out.page(page(found, target, whose))
    if not found.agrees:
        raise typer.Exit(ExitCode.FAILED)


def as_json(target: str, found: Comparison) -> dict[str, object]:
    seen = found.watched
    told = ("a", "b", "level", "isolated", "backward", "agrees", "failure", "notes")
    counted = ("operators", "compared", "not_compared", "random", "unaligned")
    return {
        "model": target,
        **{name: getattr(found, name) for name in told},
        **{name: getattr(seen, name) for name in counted},
        "not_to_blame": seen.excused,
        "differences": [_one(one) for one in seen.differences],
        "first_accumulated": _one(seen.first_accumulated),
        "first_nonfinite": _one(seen.first_nonfinite),
        "results": [
            {"name": result.name, **report.finite_fields(result.deviation)}
            for result in found.results
        ],
    }


def _one(difference: OperatorDifference | None) -> dict[str, Any] | None:
    if difference is None:
        return None
    deviation = report.finite_fields(difference.deviation)
    inner = {"number": difference.number, "result": difference.result}
    return {**vars(difference.place), **inner, "arguments": difference.arguments, **deviation}


def print_lines(lines: list[str], console: Console) -> None:
    """Print lines as they are: brackets in them are not markup."""
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
