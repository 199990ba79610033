"""What a command asks for before it starts: torch, and a place for its results."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bringup import report

_STDOUT = Path("-")

command_line: ContextVar[Sequence[str]] = ContextVar("command_line", default=())
"""What was typed behind `bringup`."""

GET_TORCH = "pip install torch==2.13.0"


def require_torch() -> None:
    """Raise `ModuleNotFoundError` with the command that gets torch where it is missing."""
    if importlib.util.find_spec("torch") is None:
        raise ModuleNotFoundError(f"this command needs torch, which is not installed: {GET_TORCH}")


def _writable(path: Path | None) -> Path | None:
    """Refuse a file that could not be written, before minutes are spent on what goes into it."""
    if path is None or path == _STDOUT:
        return path
    folder = path.absolute().parent
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder: give the name of a file")
    if not folder.is_dir():
        raise typer.BadParameter(f"the folder {folder} does not exist: make it first")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise typer.BadParameter(f"{path} cannot be written: give another place")
    return path


JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Write the results to this file too; -: to standard output, alone.",
        callback=_writable,
    ),
]

ExecutorAddress = Annotated[
    str | None,
    typer.Option(
        "--executor",
        metavar="ADDRESS",
        help="Workers of an engine do it: dask://HOST:PORT or ray://HOST:PORT.",
    ),
]


def _html_place(path: Path | None) -> Path | None:
    if path == _STDOUT:
        raise typer.BadParameter("expected the name of a file; only JSON goes to standard output")
    return _writable(path)


HtmlFile = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="Write a page of HTML to this file too, which needs no other file.",
        callback=_html_place,
    ),
]


class Output:
    """Where tables, lines and results of a command go: standard output, unless JSON goes there."""

    def __init__(self, json_file: Path | None, html_file: Path | None = None) -> None:
        self.console = Console(stderr=json_file == _STDOUT)
        self._json_file, self._html_file = json_file, html_file

    def say(self, text: str) -> None:
        """Print a line beside the tables."""
        typer.echo(text, err=self.console.stderr)

    def results(self, results: Mapping[str, object]) -> None:
        """Write the results where `--json` says, if it was given."""
        if self._json_file == _STDOUT:
            typer.echo(report.to_json(results))
        elif self._json_file is not None:
            report.write_json(self._json_file, results)
            self._written(self._json_file)

    def page(self, page: report.Page) -> None:
        """Write the page where `--html` says, if it was given, with what was typed."""
        if self._html_file is not None:
            report.write_html(self._html_file, page, ["bringup", *command_line.get()])
            self._written(self._html_file)

    def _written(self, file: Path) -> None:
        self.console.print(f"Written: {file}", markup=False, soft_wrap=True)
