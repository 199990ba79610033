"""How `--help` looks: commands by what they are for, values as words in capitals."""

from __future__ import annotations

from enum import Enum
from typing import Any

from typer.core import TyperCommand, TyperGroup

SHORT = 50


class Panel(str, Enum):
    """What a command is for: a heading in `bringup --help`."""

    CHIP = "A chip"
    KERNELS = "Kernels"
    MODELS = "Models"
    SET_UP = "Set up"


class Command(TyperCommand):
    """A command whose values are called by a metavar, or else by the last word of their name."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        one: Any
        for one in self.params:
            if one.metavar is None and not getattr(one, "is_flag", False):
                one.metavar = max(one.opts, key=len).rpartition("-")[2].rpartition("_")[2].upper()
            if one.param_type_name == "argument":
                one.display_type_rich = _no_type  # its metavar stands there already


def _no_type(ctx: Any) -> None:
    """Return what typer writes behind an argument's metavar: nothing."""


class Group(TyperGroup):
    """A group that lists its commands under their panels, in the order of `Panel`."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {one.value: [] for one in Panel}
        shown = [name for name in self.list_commands(ctx) if not self.commands[name].hidden]
        for name in shown:
            command: Any = self.commands[name]
            panel = getattr(command.rich_help_panel, "value", "Commands")
            words = name.ljust(max(map(len, shown))), command.get_short_help_str(SHORT)
            panels.setdefault(panel, []).append(words)
        for panel, rows in panels.items():
            if rows:
                with formatter.section(panel):
                    formatter.write_dl(rows)
