"""Write docs/reference from the code: the page of settings and the page of the command line.

`bringup.settings.table()` owns the settings, the typer application of `bringup.cli` the commands.
tests/docs/test_reference.py fails when a page is not what this writes. Usage:
python tools/write_reference.py
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from bringup import cli, settings
from bringup.cli._app import app
from bringup.cli._exit_codes import ExitCode

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
WIDTH = 120
NOTE = "Written by `python tools/write_reference.py` from {owner}; edit that, not this page."


def main() -> None:
    """Write both pages."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text)
        print(FOLDER / name)


def pages() -> dict[str, str]:
    """The name of each page and its text."""
    return {"settings.md": _settings_page(), "command-line.md": _command_line_page()}


def _settings_page() -> str:
    paragraphs = [
        "# Settings",
        _wrapped(NOTE.format(owner="`src/bringup/settings.py`")),
        _wrapped(
            "Settings are environment variables. Each is read when it is needed, so a program may "
            "change it at any time unless its text says otherwise; empty is the same as not set. A "
            "text that cannot be read raises `SettingError`, which names the variable. "
            "`bringup doctor` prints those that are set, and `--settings` all."
        ),
        *(_setting(**row) for row in sorted(settings.table(), key=lambda row: row["variable"])),
    ]
    return "\n\n".join(paragraphs) + "\n"


def _setting(*, variable: str, meaning: str, default: str, **_: str) -> str:
    meaning = _wrapped(_sentence(meaning[:1].upper() + meaning[1:]))
    return f"## `{variable}`\n\n{meaning}\n\nDefault: {default}."


def _command_line_page() -> str:
    root = typer.main.get_command(app)
    shared = (cli.__doc__ or "").split("\n\n", 1)[1]
    paragraphs = [
        "# The command line",
        _wrapped(NOTE.format(owner="the application in `src/bringup/cli`")),
        _wrapped(shared),
        "\n".join(
            [
                "| exit code | means |",
                "|---|---|",
                *(f"| {c.value} | {c.meaning} |" for c in ExitCode),
            ]
        ),
        *(_command(path, command) for path, command in _commands("bringup", root)),
    ]
    return "\n\n".join(paragraphs) + "\n"


def _exit_codes() -> list[str]:
    return [f"| {code.value} | {code.meaning} |" for code in ExitCode]


# Commands and parameters are click's, which newer versions of typer bring along under another name:
# read by their attributes, whatever their classes are called.
def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """`command` and all below it with what to type, in the order in which `--help` lists them."""
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from _commands(f"{path} {name}", below)


def _command(path: str, command: Any) -> str:
    arguments = [_metavar(one) for one in command.params if one.param_type_name == "argument"]
    last = "COMMAND" if hasattr(command, "commands") else "[OPTIONS]"
    paragraphs = [f"## `{' '.join([path, *arguments, last])}`"]
    paragraphs.extend(_wrapped(part) for part in _paragraphs(command.help or ""))
    rows = [_parameter(one) for one in command.params if not one.hidden]
    if rows:
        paragraphs.append("\n".join(rows))
    return "\n\n".join(paragraphs)


def _metavar(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    several = "..." if argument.nargs == -1 else ""
    return f"{name}{several}" if argument.required else f"[{name}]{several}"


def _parameter(parameter: Any) -> str:
    """One item of a list: what to type, what it means, what it is when left out."""
    typed = _metavar(parameter)
    if parameter.param_type_name == "option":
        typed = ", ".join([*parameter.opts, *parameter.secondary_opts])
        if not parameter.is_flag:
            typed += f" {parameter.metavar or parameter.opts[0].rpartition('-')[2].upper()}"
    notes = [_sentence(parameter.help or "")]
    if isinstance(parameter.default, (int, float, str)) and not isinstance(parameter.default, bool):
        notes.append(f"Default: {parameter.default}.")
    return _wrapped(f"* `{typed}`: {' '.join(notes)}", indent="  ")


def _paragraphs(text: str) -> list[str]:
    return [part for part in re.split(r"\n\s*\n", text.strip()) if part.strip()]


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text if not text or text.endswith((".", ")", "]")) else f"{text}."


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(
        " ".join(text.split()),
        width=WIDTH,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


if __name__ == "__main__":
    main()
