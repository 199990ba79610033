"""Results as JSON."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"cannot write {type(value).__name__} as JSON: {value!r}")


def finite_fields(row: Any) -> dict[str, object]:
    """Return the fields of the dataclass instance `row`, by name; None for NaN and infinities."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in vars(row).items()
    }


def to_json(result: Mapping[str, object]) -> str:
    """Return `result` as JSON; dataclasses, enums and paths by value, NaN refused."""
    return json.dumps(result, default=_plain, indent=2, ensure_ascii=False, allow_nan=False)


def write_json(path: Path, result: Mapping[str, object]) -> None:
    """Write a result as JSON.

    Args:
        path: the file; one of this name is replaced.
        result: of dataclasses, mappings, sequences, numbers and texts.

    Raises:
        OSError: the file cannot be written.
        TypeError: the result has objects of other kinds.
        ValueError: the result has a NaN or an infinity; `finite_fields` makes None of them.
    """
    path.write_text(to_json(result) + "\n", encoding="utf-8")
