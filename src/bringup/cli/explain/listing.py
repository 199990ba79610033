"""What `bringup passes list` prints. Works without torch."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from bringup import passes, report, settings
from bringup.report._columns import fixed, names, numbers


def show_list(console: Console, rows: Sequence[dict[str, object]]) -> None:
    """Print the registered passes."""
    columns = [*fixed("on"), *names("pass"), *fixed("stage"), *numbers("priority")]
    columns += [*fixed("kind", "version", spare=True), *names("defined by", least=24)]
    table = report.Table("Registered passes, as they run", columns)
    for row in rows:
        place = f"{row['module_name']}.{row['class_qualname']}"
        keys = ("pass_name", "stage", "priority", "kind", "version")
        state = "on" if row["on"] else "off"
        table.add(state, *(str(row[key]) for key in keys), place)
    report.render(table, console)


def as_json_of(rows: Sequence[dict[str, object]], errors: Sequence[str]) -> dict[str, object]:
    """Return the registered passes and the plugins that could not be loaded."""
    return {"passes": list(rows), "plugin_errors": list(errors)}


def registered_rows() -> list[dict[str, object]]:
    """Return the registered passes with whether each is switched on."""
    switches = settings.pass_switch()
    return [
        {**row, "on": passes.is_enabled(str(row["pass_name"]), switches)}
        for row in passes.get_registered_pass_dicts()
    ]
