"""Registering the table's kernels, and taking them out again."""

from __future__ import annotations

from pathlib import Path

from bringup.devices import OperatorTable
from bringup_opencl import _target as _target  # .cl is a language from here on
from bringup_opencl._operators import OPERATORS

__all__ = ["TABLE"]

TABLE = OperatorTable(OPERATORS, Path(__file__).parent / "kernels")
