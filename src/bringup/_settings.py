"""What a setting is; parsers of texts raise `ValueError` with what they expected."""

from __future__ import annotations

import logging
import math
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeAlias, TypeVar

from bringup.errors import SettingError

T = TypeVar("T")
NativeChoice: TypeAlias = Literal["auto", "required", "none"]


@dataclass(frozen=True)
class Setting(Generic[T]):
    """One environment variable.

    Attributes:
        variable: its name.
        meaning: what it does, in words.
        default_text: the default in words, or as the variable would say it.
        parse: makes the value of a text; raises `ValueError` for one that is none.
        default: makes the default, for words that `parse` does not take.
    """

    variable: str
    meaning: str
    default_text: str
    parse: Callable[[str], T]
    default: Callable[[], T] | None = None

    def __call__(self) -> T:
        """Return the current value. Raises `SettingError` where the text cannot be parsed."""
        text = os.environ.get(self.variable, "")
        if not text.strip():
            return self.default() if self.default else self.parse(self.default_text)
        try:
            return self.parse(text)
        except ValueError as error:
            raise SettingError(f"{self.variable}={text!r}: {error}") from error


def switch(text: str) -> bool:
    """1 or 0, in words too."""
    lowered = text.strip().lower()
    if lowered in {"1", "true", "on", "yes"}:
        return True
    if lowered in {"0", "false", "off", "no"}:
        return False
    raise ValueError("expected 1 or 0 (also on/off, true/false, yes/no)")


_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_EVENTS = "json"


def log_levels(text: str) -> dict[str, int]:
    """Level by logger name, from `warning`, `jit:debug,passes:info` or `passes:json` (events)."""
    levels = {}
    for part in text.split(","):
        package, _, level = part.strip().rpartition(":")
        if package and level.lower() == _EVENTS:
            levels[f"bringup.{package}.events"] = logging.INFO
            continue
        if level.lower() not in _LEVELS:
            raise ValueError(
                f"expected {', '.join(_LEVELS)}, also as package:level, got {part.strip()!r}"
            )
        levels[f"bringup.{package}" if package else "bringup"] = _LEVELS[level.lower()]
    return levels


def count(text: str) -> int | None:
    """Return a number; None for no limit."""
    if not text.strip().isdecimal():
        raise ValueError("expected a number; 0: no limit")
    return int(text) or None


def level(text: str) -> int:
    """Return 0, 1 or 2."""
    if text.strip() not in ("0", "1", "2"):
        raise ValueError("expected 0, 1 or 2")
    return int(text)


def number(text: str) -> int | None:
    """Return a number."""
    if not text.strip().isdecimal():
        raise ValueError("expected a number from 0 on")
    return int(text)


def path(text: str) -> Path:
    """Return a path; `~` is the home folder."""
    try:
        return Path(text).expanduser() if text.startswith("~") else Path(text)
    except RuntimeError:
        raise ValueError(f"expected a path, and there is no user {text.split('/')[0]!r}") from None


def trace_place(text: str) -> Path | None:
    """Return where a trace goes: "-" for stderr from 1, None from 0, or a JSON file."""
    if text.strip().endswith(".json"):
        return path(text.strip())
    try:
        return Path("-") if switch(text) else None
    except ValueError:
        raise ValueError("expected 1, 0 or the name of a file that ends in .json") from None


def paths(text: str) -> tuple[Path, ...]:
    """Return paths separated like those of PATH."""
    return tuple(path(part) for part in text.split(os.pathsep) if part)


def native_choice(text: str) -> NativeChoice:
    """Return what `BRINGUP_NATIVE` asks for."""
    lowered = text.strip().lower()
    if lowered == "auto":
        return "auto"
    try:
        return "required" if switch(lowered) else "none"
    except ValueError:
        raise ValueError("expected auto, 1 or 0") from None


def collectives(text: str) -> bool:
    """Return whether `BRINGUP_COLLECTIVES` asks for the driver's own."""
    try:
        return {"driver": True, "gloo": False}[text.strip().lower()]
    except KeyError:
        raise ValueError("expected driver or gloo") from None


def words(text: str) -> tuple[str, ...]:
    """Return words separated by commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


_DEBUG_WORDS = ("assembly", "preprocessed", "line_info", "address", "undefined")


def debug_words(text: str) -> tuple[str, ...]:
    """Return what a debug build adds, separated by commas."""
    found = words(text)
    for word in found:
        if word not in _DEBUG_WORDS:
            raise ValueError(
                f"expected words of {', '.join(_DEBUG_WORDS)}, separated by commas, got {word!r}"
            )
    return found


def memory(text: str) -> str:
    """Return a number of bytes as `size` takes it, for a program that reads it itself."""
    size(text)
    return text


def switches(text: str) -> dict[str, bool]:
    """On or off by name, from `ALL:off,Name:on` or from a JSON file, also in GE's form."""
    if text.strip().endswith(".json"):
        return _switch_file(path(text.strip()))
    states = {}
    for part in words(text):
        name, separator, state = part.rpartition(":")
        if not separator or not name:
            raise ValueError(f"expected Name:on or Name:off, ALL for all others, got {part!r}")
        states[name] = switch(state)
    return states


def default_cache_dir() -> Path:
    """Return what platformdirs says, imported only where that may differ from plain Linux."""
    xdg, home = os.environ.get("XDG_CACHE_HOME", ""), os.environ.get("HOME", "")
    if sys.platform == "linux" and xdg.startswith("/"):
        return Path(xdg, "bringup")
    if sys.platform == "linux" and not xdg and home.startswith("/"):
        return Path(home, ".cache", "bringup")
    import platformdirs

    return Path(platformdirs.user_cache_dir("bringup", appauthor=False))


def runs_in_ci() -> bool:
    """Return whether `CI` says that this is a machine of continuous integration."""
    return os.environ.get("CI", "").strip().lower() not in {"", "0", "false"}


def inherited(*names: str) -> dict[str, str]:
    """Return those of these variables of the system, or of other projects, that are set."""
    return {name: os.environ[name] for name in names if name in os.environ}


def torchrun_restarts() -> int:
    """Return how often torchrun has started this process's group anew."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def without(*names: str) -> dict[str, str]:
    """Return the environment but for these variables, for a program that is started."""
    return {name: text for name, text in os.environ.items() if name not in names}


def logger(package: str, levels: dict[str, int]) -> logging.Logger:
    """Return the logger `bringup.<package>` with these levels; on stderr if none is set up."""
    found = logging.getLogger(f"bringup.{package}")
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    root = logging.getLogger("bringup")
    if levels and not root.handlers:
        root.addHandler(logging.StreamHandler())
    return found


FLOAT64_POLICIES = ("error", "warn", "cpu")
FALLBACK_ACTIONS = ("allow", "warn", "forbid")
OPERATOR_NAME = re.compile(r"\w+::\w+(\.\w+)?")


def float64_policy(text: str) -> str:
    """Return one of error, warn and cpu."""
    if text.strip() not in FLOAT64_POLICIES:
        raise ValueError(f"expected error, warn or cpu, got {text!r}")
    return text.strip()


def fallback_policy(text: str) -> tuple[str, dict[str, str]]:
    """Return what holds for all operators, and exceptions, from `forbid,aten::mm=allow`."""
    default, operators = FALLBACK_ACTIONS[0], {}
    for part in words(text):
        name, equals, action = part.rpartition("=")
        if action.strip() not in FALLBACK_ACTIONS or (
            equals and not OPERATOR_NAME.fullmatch(name.strip())
        ):
            raise ValueError(
                "expected allow, warn or forbid, and exceptions such as aten::mm=allow or "
                f"aten::add.Tensor=warn, separated by commas; got {part!r}"
            )
        if equals:
            operators[name.strip()] = action.strip()
        else:
            default = action.strip()
    return default, operators


def _switch_file(file: Path) -> dict[str, bool]:
    import json

    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read as JSON: {error}") from None
    for key in ("Switch", "GraphFusion"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    if not isinstance(found, dict) or not all(isinstance(item, str) for item in found.values()):
        raise ValueError(f'{file} must hold an object such as {{"ALL": "off", "Name": "on"}}')
    return {name: switch(state) for name, state in found.items()}


def seconds(text: str) -> float:
    """Return a number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise ValueError("expected a number of seconds above 0")
    return value


def size(text: str) -> int | None:
    """Return a number of bytes; None for no limit.

    Args:
        text: a whole number, also with K, M or G behind it (2**10, 2**20, 2**30); 0 is no limit.

    Raises:
        ValueError: it is none.
    """
    digits, unit = text.strip()[:-1], text.strip()[-1:].upper()
    shift = {"K": 10, "M": 20, "G": 30}.get(unit)
    if shift is None:
        digits = text.strip()
    if not digits.isascii() or not digits.isdigit():
        raise ValueError("expected a number of bytes, also with K, M or G behind it; 0: no limit")
    return int(digits) << (shift or 0) or None
