"""What a command asks for before it starts: torch, and a place for its results."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["GET_TORCH", "JsonFile", "require_torch"]

GET_TORCH = "pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"


def require_torch() -> None:
    """Raise `ModuleNotFoundError` with the command that gets torch where it is missing."""
    if importlib.util.find_spec("torch") is None:
        raise ModuleNotFoundError(f"this command needs torch, which is not installed: {GET_TORCH}")


def _writable(path: Path | None) -> Path | None:
    """Refuse a file that could not be written, before minutes are spent on what goes into it."""
    if path is None:
        return None
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
    typer.Option("--json", help="Write the results to this file too.", callback=_writable),
]
