"""What `bringup doctor` shows beside the checks: devices, a dispatch table, torch's stubs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bringup import devices, jit, report
from bringup.cli._requirements import Output, require_torch
from bringup.jit.target.target import find_target, loops_of
from bringup.report._columns import fixed, texts


def show_operator(name: str, json_file: Path | None) -> None:
    """Show an operator's kernels by key, and the driver. Raises `DeviceError` if there is none."""
    require_torch()
    table = devices.dispatch_table(name)
    loaded = devices.loaded()
    out = Output(json_file)
    _show_table(table, loaded, out.console)
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
    out.results(results)


def _show_table(
    table: devices.DispatchTable, loaded: devices.DriverInfo | None, console: Console
) -> None:
    columns = [*fixed("key"), *texts("kernel", "where")]
    rows = [(keys, entry.kind.value, entry.source) for keys, entry in table.groups()]
    if sum(max(len(row[i]) + 1 for row in rows) for i in range(3)) <= console.width:
        shown = report.Table(table.schema or table.operator, columns, [*rows])
    else:  # a place is one word: it gets a line of its own, and is not folded
        shown = report.Table(table.schema or table.operator, texts("key: kernel, where"))
        for keys, kind, where in rows:
            shown.add(f"{keys}: {kind}" + f"\n  {where}" * bool(where))
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
    """Show what `REGISTER_PRIVATEUSE1_DISPATCH` can register. Raises `DeviceError`."""
    require_torch()
    stubs = devices.dispatch_stubs()
    columns = [*fixed("stub"), *texts("function", "")]
    shown = report.Table("REGISTER_PRIVATEUSE1_DISPATCH(stub, &function)", columns)
    for header in sorted({stub.header for stub in stubs}):
        shown.add(header, "", "")
        for stub in stubs:
            if stub.header == header:
                problem = "" if stub.registrable else "not exported"
                shown.add(f"  {stub.name}", stub.signature, problem)
    registrable = sum(stub.registrable for stub in stubs)
    shown.notes.append(f"{registrable} of {len(stubs)} stubs can be registered")
    out = Output(json_file)
    report.render(shown, out.console)
    out.results({"stubs": stubs})


def show_driver(found: devices.DriverDescription, console: Console) -> None:
    """Show what a driver and its devices say of themselves."""
    columns = [*fixed("what"), *texts("value")]
    driver = report.Table(f"Driver {found.path}", columns)
    driver.add("device", f"{found.device_name}, {found.device_count} of them")
    driver.add("description", found.description)
    groups = (name.removeprefix("BRINGUP_HAS_") for name in found.capabilities)
    driver.add("capabilities", ", ".join(groups) or "none")
    if found.failure:
        driver.notes.append(f"not described: {found.failure}")
    report.render(driver, console)
    for index, one in enumerate(found.devices):
        rows = [*_device_rows(one), ("torch.compile", code_generator(one, found.capabilities))]
        table = report.Table(f"{found.device_name}:{index}", columns, rows)
        report.render(table, console)
    left_out = found.device_count - len(found.devices)
    if left_out > 0 and not found.failure:
        console.print(f"and {left_out} more devices", markup=False)


def _device_rows(one: devices.DeviceDescription) -> list[tuple[str, ...]]:
    integers = "" if one.supports_int64 else "; kernels have no 64-bit integers"
    visible = "visible to the host" if one.host_visible_memory else "not visible to the host"
    return [
        ("name", f"{one.name} ({one.arch}), {one.core_count} cores"),
        ("driver version", one.driver_version or "not told"),
        ("uuid", "none" if one.uuid is None else str(one.uuid)),
        ("memory", f"{_mib(one.free_memory)} of {_mib(one.total_memory)} free, {visible}"),
        ("alignment", f"{one.alignment} bytes"),
        ("dtypes", ", ".join(one.dtypes) + integers),
        ("device code", "host code" if one.runs_host_code else "of its own"),
    ]


def code_generator(one: devices.DeviceDescription, capabilities: Sequence[str]) -> str:
    """Return who compiles Inductor's kernels for a device, or what is missing for that."""
    target = jit.target_of_arch(one.arch)
    if target.partition(":")[0] not in jit.targets():
        return f"not with Inductor: no package here brings target {target!r}"
    loops = loops_of(target)
    if loops is None:
        return f"not with Inductor: target {target!r} has no language of loop nests"
    if "BRINGUP_HAS_LAUNCH_VALUES" not in capabilities:
        return "not with Inductor: the driver has no launch_values"
    found = jit.toolchain(target, kind="device")
    compiler = found.problem or f"{found.version} at {found.path}"
    language = find_target(target).languages[loops.suffix]
    return f"Inductor, in {language} for target {target!r}: {compiler}"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


def driver_results(found: devices.DriverDescription | None) -> dict[str, object] | None:
    """Return a driver for JSON."""
    if found is None:
        return None
    described = [
        {
            **vars(one),
            "uuid": None if one.uuid is None else str(one.uuid),
            "torch_compile": code_generator(one, found.capabilities),
        }
        for one in found.devices
    ]
    return {**vars(found), "devices": described}
