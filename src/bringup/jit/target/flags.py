"""Macros and flags in their canonical form, and what flags name: folders and files."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

Macro: TypeAlias = str | int | float | bool

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# Types, names, numbers, expressions and argument lists of C++; nothing that opens a string, a
# comment, a directive or another statement.
_TEXT = re.compile(r"[A-Za-z0-9_:<>,.()\[\]&*+\-|^~%!?= ]*\Z")
_INCLUDE_FLAG = re.compile(r"(-I|-iquote|-isystem|-idirafter)(.+)\Z")
_LIBRARY_FOLDER = re.compile(r"(-L)(.+)\Z")
_OTHER_FOLDER = re.compile(r"(--sysroot=|-isysroot|--(?:include|library)-directory=)(.+)\Z")
# How a folder begins that lies in the sysroot.
_IN_SYSROOT = re.compile(r"=|\$SYSROOT(?=/|\Z)")
_FOLDERS = (_INCLUDE_FLAG, _LIBRARY_FOLDER, _OTHER_FOLDER)
# These would move or rename what the build writes, compile something else than the source, or run
# other programs than those that the key knows.
_REFUSED_FLAG = re.compile(
    r"-(o.*|c|S|E|M.*|x.*|d.*|save-temps.*|wrapper.*|specs.*|fplugin.*|B.*)\Z"
)
# These read files unknown to us: options in a file, folders of one program alone,
# modules, profiles that are looked for in a folder.
_HIDING_FLAG = re.compile(
    r"-(W[lap],@.*|Xlinker=@.*|Wp,-[IiM].*|Wa,-(I|-MD).*|fmodule.*|fprofile-use=.*|fauto-profile=.*)\Z"
)
_PART = re.compile(r"[=,:]")
_INT_LIMIT = 2**63


def _render_macro(name: str, value: object) -> str:
    where = f"macro {name!r}"
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, int):
        if not -_INT_LIMIT < value < _INT_LIMIT:
            raise ValueError(f"{where}: expected an integer of 64 bits, got {value}")
        return str(int(value)) if value >= 0 else f"({int(value)})"
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where}: expected a finite number, got {value}; pass it at run time")
        return f"({float(value)!r})"
    if isinstance(value, str):
        if not _TEXT.match(value):
            raise ValueError(
                f"{where}: expected a type, a name or an expression of C++, got {value!r}; quotes, "
                "slashes, backslashes, semicolons, braces, # and line ends are not allowed"
            )
        return value
    raise TypeError(
        f"{where}: expected str, int, float or bool, got {type(value).__name__} ({value!r})"
    )


def render_macros(macros: Mapping[str, Macro]) -> tuple[str, ...]:
    """`NAME=value` for each macro, sorted. Raises `TypeError` or `ValueError` naming the macro."""
    rendered = []
    for name, value in macros.items():
        if not isinstance(name, str) or not _NAME.match(name):
            raise ValueError(f"macro {name!r}: expected the name of a C macro")
        rendered.append(f"{name}={_render_macro(name, value)}")
    return tuple(sorted(rendered))


def render_flags(flags: Iterable[str]) -> tuple[str, ...]:
    """Return the flags with absolute folders. Raises `TypeError` or `ValueError` naming it."""
    if isinstance(flags, str):
        raise TypeError(f"flags={flags!r}: expected a sequence of flags, got one string")
    flags = tuple(flags)
    rendered = []
    for flag in flags:
        if not isinstance(flag, str):
            raise TypeError(f"flag {flag!r}: expected str, got {type(flag).__name__}")
        if not flag.startswith("-") or "\n" in flag or "\0" in flag:
            raise ValueError(
                f"flag {flag!r}: expected one option joined with its value, as in '-I/path'"
            )
        if _REFUSED_FLAG.match(flag):
            raise ValueError(
                f"flag {flag!r}: it changes what is written or compiled; jit decides that"
            )
        if _HIDING_FLAG.match(flag) and not os.path.isfile(flag.partition("=")[2]):
            raise ValueError(
                f"flag {flag!r}: the files that it brings in could not be followed when they "
                "change; name them one by one, by flags of their own"
            )
        folder = next(filter(None, (kind.match(flag) for kind in _FOLDERS)), None)
        rendered.append(folder[1] + _absolute(flag, folder[2], flags) if folder else flag)
    return tuple(rendered)


def _absolute(flag: str, folder: str, flags: Sequence[str]) -> str:
    """Return the folder that the flag names, in the sysroot of the flags where it says so."""
    inside = _IN_SYSROOT.match(folder)
    if inside is None:
        return os.path.abspath(folder)
    kinds = ("--sysroot=",) if flag.startswith(("-L", "--l")) else ("-isysroot", "--sysroot=")
    for kind in kinds:
        for other in reversed(flags):
            if isinstance(other, str) and other.startswith(kind):
                return os.path.abspath(other[len(kind) :]) + folder[inside.end() :]
    raise ValueError(
        f"flag {flag!r}: {inside[0]} stands for the sysroot, and no --sysroot= is among the flags; "
        "add it, or name the whole folder"
    )


def include_directories(flags: Iterable[str], kind: str = "") -> list[str]:
    """Return the folders that include flags, or those of one `kind` (`-I`), name, in order."""
    named = (found for flag in flags if (found := _INCLUDE_FLAG.match(flag)))
    return [found[2] for found in named if kind in ("", found[1])]


def library_directories(flags: Iterable[str]) -> list[str]:
    return [found[2] for flag in flags if (found := _LIBRARY_FOLDER.match(flag))]


def files_named(flags: Iterable[str]) -> list[str]:
    """Return the files that flags name: profiles, version scripts, forced includes."""
    words: list[str] = []
    for flag in flags:
        slash = flag.find("/")
        words += [flag[slash:]] * (slash > 0)
        words += [flag[found.end() :] for found in _PART.finditer(flag)]
    return [word for word in dict.fromkeys(words) if os.path.isabs(word) and os.path.isfile(word)]


def without_folders(flag: str) -> str:
    """Return the flag as the key has it: by what is found, not by which folder."""
    return _LIBRARY_FOLDER.sub(r"\1", _INCLUDE_FLAG.sub(r"\1", flag))
