"""`bringup coverage`: the operators that a model needs of a device, as a list of work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bringup import report
from bringup.cli._columns import fixed, names, numbers, texts
from bringup.cli._compare_command import print_lines
from bringup.cli._exit_codes import ExitCode
from bringup.cli._requirements import (
    HtmlFile,
    JsonFile,
    console_for,
    write_page,
    write_results,
)
from bringup.cli._simulator import ModelTarget, Operators, loaded_model

if TYPE_CHECKING:
    from bringup.conformance import Coverage, Need

_SHARES = ("operators", "calls", "flops", "bytes")
_LEAST_SHAPES = 10


def coverage(
    target: ModelTarget,
    device: Annotated[str, typer.Option(help="The device.")] = "npu",
    driver: Annotated[
        str | None, typer.Option(help="Its driver: a library or a name; default: sim.")
    ] = None,
    operators: Operators = True,
    forward_only: Annotated[
        bool, typer.Option("--forward-only", help="Leave the gradients out.")
    ] = False,
    optimizer: Annotated[
        str | None, typer.Option(help="Run a step of this class of torch.optim too, e.g. AdamW.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows of the table; --json has all.")] = 30,
    json_file: JsonFile = None,
    html_file: HtmlFile = None,
) -> None:
    """List the operators, dtypes and shapes that a model needs of a device: native, on the host, or
    impossible; the most work first.

    A factory returns (model, example_inputs); the model stays in the mode that it gives it.

    Exit code 0: each can run, on the device or the host, 1: one cannot.
    """
    console = console_for(json_file)
    with loaded_model(target, (device,), driver, operators) as (subject, whose):
        from bringup import conformance

        found = conformance.coverage(
            subject.model,
            subject.args,
            subject.kwargs,
            device=device,
            backward=not forward_only,
            optimizer=optimizer,
        )
    found.notes[:0] = subject.notes
    headline = [_headline(found), *filter(None, [whose])]
    print_lines(headline, console)
    report.render(_shares(found), console)
    report.render(_table(found, rows), console)
    write_results(json_file, as_json(target, found), console)
    write_page(html_file, _page(target, found, headline), console)
    if found.of(conformance.Support.IMPOSSIBLE):
        raise typer.Exit(ExitCode.FAILED)


def as_json(target: str, found: Coverage) -> dict[str, object]:
    """Return the coverage for `--json`."""
    needs = [{**vars(need), "on_host": sorted(need.on_host)} for need in found.needs]
    return {
        "model": target,
        "device": found.device,
        "phases": found.phases,
        "notes": found.notes,
        "shares": _share_values(found),
        "needs": needs,
    }


def _share_values(found: Coverage) -> dict[str, dict[str, float]]:
    from bringup.conformance import Support

    return {s.value: {name: found.share(s, name) for name in _SHARES} for s in Support}


def _shares(found: Coverage) -> report.Table:
    table = report.Table("Share of all", [*fixed(""), *numbers(*_SHARES)])
    for name, values in _share_values(found).items():
        table.add(name, *(f"{value:.0%}" for value in values.values()))
    return table


def _table(found: Coverage, rows: int) -> report.Table:
    columns = [*names("operator"), *fixed("phase", "dtype"), *numbers("calls", "MFLOP", "MiB")]
    columns += [*fixed("runs"), *texts("shapes", least=_LEAST_SHAPES)]
    table = report.Table(f"What the model needs of {found.device}: {len(found.needs)}", columns)
    for need in found.needs[:rows]:
        table.add(
            need.operator.removeprefix("aten::"),
            need.phase,
            ", ".join(need.dtypes),
            f"{need.calls:,}",
            f"{need.flops / 1e6:,.2f}",
            f"{need.bytes / 2**20:,.2f}",
            need.support.value,
            _shapes(need),
        )
    if len(found.needs) > rows:
        table.notes.append(f"{len(found.needs) - rows} more: --rows, --json")
    reasons = {f"{need.operator}: {need.reason}" for need in found.needs if need.reason}
    table.notes += [*sorted(reasons), *found.notes]
    return table


def _shapes(need: Need) -> str:
    shown = [str(list(shape)).replace(" ", "") for shape in need.shapes[:4]]
    return " ".join(shown) + (f" and {len(need.shapes) - 4} more" if len(need.shapes) > 4 else "")


def _headline(found: Coverage) -> str:
    native = _share_values(found)["native"]
    share = f"{native['flops']:.0%} of the FLOPs and {native['operators']:.0%} of the operators"
    return f"{share} native"


def _page(target: str, found: Coverage, headline: list[str]) -> report.Page:
    values = _share_values(found)
    names = list(values)
    bars = [
        report.Bar(
            what,
            [values[name][what] for name in names],
            f"{values['native'][what]:.0%} native",
        )
        for what in _SHARES
    ]
    sections = [
        report.Section("Share of all", key=names, bars=bars),
        report.Section("The work list", tables=[_table(found, len(found.needs))]),
    ]
    facts = {"model": target, "device": found.device, "phases": ", ".join(found.phases)}
    return report.Page(f"{target} on {found.device}", headline, facts, sections)
