"""`bringup coverage`: the operators that a model needs of a device, as a list of work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bringup import report
from bringup.cli._compare_command import print_lines
from bringup.cli._exit_codes import ExitCode
from bringup.cli._requirements import HtmlFile, JsonFile, Output
from bringup.cli._simulator import ForwardOnly, ModelTarget, Operators, loaded_model

if TYPE_CHECKING:
    from bringup.conformance import Coverage


def coverage(
    target: ModelTarget,
    device: Annotated[str, typer.Option(help="The device.")] = "npu",
    driver: Annotated[
        str | None, typer.Option(help="Its driver: a library or a name; default: sim.")
    ] = None,
    operators: Operators = True,
    forward_only: ForwardOnly = False,
    optimizer: Annotated[
        str | None, typer.Option(help="Run a step of this class of torch.optim too, e.g. AdamW.")
    ] = None,
    compiled: Annotated[
        bool, typer.Option("--compiled", help="Count what stays eager under torch.compile, too.")
    ] = False,
    rows: Annotated[int, typer.Option(min=1, help="Rows of the table; --json has all.")] = 30,
    json_file: JsonFile = None,
    html_file: HtmlFile = None,
) -> None:
    """List the operators, dtypes and shapes that a model needs of a device: native, on the host, or
    impossible; the most work first.

    A factory returns (model, example_inputs); the model stays in the mode that it gives it.

    Exit code 0: each can run, on the device or the host, 1: one cannot.
    """
    out = Output(json_file, html_file)
    with loaded_model(target, (device,), driver, operators) as (subject, whose):
        from bringup import conformance
        from bringup.conformance.coverage_page import (
            eager_table,
            headline,
            needs_table,
            page,
            shares_table,
        )

        found = conformance.coverage(
            subject.model,
            subject.args,
            subject.kwargs,
            device=device,
            backward=not forward_only,
            optimizer=optimizer,
            compiled=compiled,
        )
    found.notes[:0] = subject.notes
    print_lines([headline(found), *filter(None, [whose])], out.console)
    report.render(shares_table(found), out.console)
    report.render(needs_table(found, rows), out.console)
    if found.eager_nodes is not None:
        report.render(eager_table(found), out.console)
    out.results(as_json(target, found))
    out.page(page(found, target, whose))
    if found.of(conformance.Support.IMPOSSIBLE):
        raise typer.Exit(ExitCode.FAILED)


def as_json(target: str, found: Coverage) -> dict[str, object]:
    from bringup.conformance.coverage_page import share_values

    needs = [{**vars(need), "on_host": sorted(need.on_host)} for need in found.needs]
    return {
        "model": target, "device": found.device, "phases": found.phases, "notes": found.notes,
        "shares": share_values(found), "needs": needs, "eager_nodes": found.eager_nodes,
    }  # fmt: skip
