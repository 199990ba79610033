"""What `bringup doctor` shows beside the checks: an operator's dispatch table, torch's stubs."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from bringup import devices, report
from bringup.cli._needs import console_for, require_torch, write_results

__all__ = ["show_operator", "show_stubs"]


def show_operator(name: str, json_file: Path | None) -> None:
    """Show which kernel is on which key of an operator; with a driver, as it is with this driver.

    Raises:
        DeviceError: there is no such operator.
    """
    require_torch()
    table = devices.dispatch_table(name)
    loaded = devices.loaded()
    console = console_for(json_file)
    _show_table(table, loaded, console)
    results = {
        "operator": table.operator,
        "schema": table.schema,
        "driver": None if loaded is None else {"device": loaded.device_name, "path": loaded.path},
        "entries": [
            {"key": e.key, "kind": e.kind, "file": e.file, "line": e.line, "where": e.where}
            for e in table.entries
        ],
        "registrations": table.registrations,
    }
    write_results(json_file, results, console)


def _show_table(
    table: devices.DispatchTable, loaded: devices.DriverInfo | None, console: Console
) -> None:
    columns = [report.Column("key", fixed=True), report.Column("kernel"), report.Column("where")]
    shown = report.Table(table.schema or table.operator, columns)
    for keys, entry in table.groups():
        shown.add(keys, entry.kind.value, entry.source)
    missing = sum(entry.kind is devices.KernelKind.MISSING for entry in table.entries)
    if missing:
        shown.notes.append(f"{missing} keys have no kernel; --json lists them")
    hidden = [one for one in table.registrations if not one.active]
    shown.notes += [f"hidden by a later registration: {one.key}, {one.where}" for one in hidden]
    device = "no driver is loaded: --driver NAME loads one"
    if loaded is not None:
        device = f"PrivateUse1 is {loaded.device_name!r}, driver {loaded.path}"
    shown.notes.append(device)
    report.render(shown, console)


def show_stubs(json_file: Path | None) -> None:
    """Show what `REGISTER_PRIVATEUSE1_DISPATCH` can register.

    Raises:
        DeviceError: torch's headers are missing or cannot be read.
    """
    require_torch()
    stubs = devices.dispatch_stubs()
    columns = [report.Column("stub", fixed=True), report.Column("function"), report.Column("")]
    shown = report.Table("REGISTER_PRIVATEUSE1_DISPATCH(stub, &function)", columns)
    for header in sorted({stub.header for stub in stubs}):
        shown.add(header, "", "")
        for stub in stubs:
            if stub.header == header:
                problem = "" if stub.registrable else "not exported"
                shown.add(f"  {stub.name}", stub.signature, problem)
    registrable = sum(stub.registrable for stub in stubs)
    shown.notes.append(f"{registrable} of {len(stubs)} stubs can be registered")
    console = console_for(json_file)
    report.render(shown, console)
    write_results(json_file, {"stubs": stubs}, console)
