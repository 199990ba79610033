"""What the text of a source says of its parameter struct and of its optional functions.

For C, and for entries that take `const void*`: there the compiler cannot hold the struct against
`params=`. In C++ with a pointer to the struct, include/bringup/glue.h does. Read is what is written
plainly; a type behind a typedef or a macro is taken for right.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from bringup.jit._declaration import NOISE, declaration_in, functions_in
from bringup.jit._items import Item

__all__ = ["check_text"]

_HOOKS = ("can_implement", "workspace_size")
_DIRECTIVE = "\1"  # stands for one that lies between the members
_STRUCT = re.compile(r"\bstruct\b\s*\w*\s*\{\s*(?:struct\s+)?bringup_params\s+\w+\s*;([^{}]*)\}")
_DECLARATION = re.compile(
    r"\s*((?:[A-Za-z_][\w:]*[\s*]+)+?[\s*]*)((?:\**\s*\w+\s*,\s*)*\**\s*\w+)\s*\Z"
)
_QUALIFIERS = re.compile(r"\b(?:const|volatile|struct|restrict|__restrict__|__restrict)\b|\bstd::")
_NUMBER = re.compile(r"(u?int64_t|(unsigned )?long( long)?( int)?|size_t|ptrdiff_t|u?intptr_t)\Z")
_NARROW = re.compile(r"(float|(unsigned )?(int|short|char)|unsigned|bool|_Bool|u?int(32|16|8)_t)\Z")
_SHOWN: Mapping[str, str] = {
    "void*": "a pointer",
    "const char*": "a pointer",
    "int64_t": "an int64_t",
    "double": "a double",
}


@lru_cache(maxsize=256)
def _read(text: str) -> tuple[tuple[tuple[str, str], ...] | None, tuple[str, ...]]:
    """The members of the parameter struct as pairs of type and name, or None when the text does not
    show one; and the functions that are defined and never used.
    """
    plain = NOISE.sub(lambda found: _DIRECTIVE if "#" in found[0][:80] else " ", text)
    bodies = [found[1] for found in _STRUCT.finditer(plain)]
    members = _members(bodies[0]) if len(bodies) == 1 and _DIRECTIVE not in bodies[0] else None
    unused = [name for name in functions_in(text) if len(re.findall(rf"\b{name}\b", plain)) == 1]
    return members, tuple(unused)


def _members(body: str) -> tuple[tuple[str, str], ...] | None:
    members = []
    for part in filter(str.strip, body.split(";")):
        found = _DECLARATION.match(part)
        if found is None:
            return None  # an array, a bit field, a default: more than is read here
        for name in found[2].split(","):
            kind = found[1] + name
            stars = kind.count("*")
            plain = " ".join(_QUALIFIERS.sub(" ", found[1].replace("*", " ")).split())
            members.append(("*" if stars else plain, name.strip("* \t\n")))
    return tuple(members)


def check_text(text: str, entry: str, items: Sequence[Item]) -> str:
    """Why the source does not fit the items of `params=`, or ""."""
    members, unused = _read(text)
    for name in unused:
        for near in difflib.get_close_matches(name, _HOOKS, 1, 0.85):
            if name not in (*_HOOKS, entry):
                return f"it defines {name}, which nobody calls; the optional function is {near}"
    if members is None or not _is_untyped(text, entry):
        return ""
    if len(members) != len(items):
        return (
            f"its parameter struct has {len(members)} fields after bringup_params, params= has "
            f"{len(items)}: {', '.join(item.text for item in items)}"
        )
    names = [name for _, name in members]
    for i, (item, (kind, name)) in enumerate(zip(items, members, strict=True)):
        wanted = item.argument_name
        if (
            wanted in names
            and name != wanted
            and wanted not in {it.argument_name for it in items[:i]}
        ):
            return (
                f"its parameter struct has {wanted} as field {names.index(wanted) + 1}, params= as "
                f"{i + 1}; the order has to be the same"
            )
        if not _fits(kind, item.c_type):
            return (
                f"field {i + 1} of its parameter struct is {'a pointer' if kind == '*' else kind} "
                f"({name}), and params= has {item.text} there, which is {_SHOWN[item.c_type]}"
            )
    return ""


def _is_untyped(text: str, entry: str) -> bool:
    """Whether the compiler cannot tell which struct the entry gets."""
    declared = declaration_in(text, entry)
    return declared is not None and "void" in declared[-1].text


def _fits(kind: str, c_type: str) -> bool:
    """Whether a field of this type takes such a value; a type that is not known here does."""
    if _NARROW.match(kind):
        return False
    if kind == "*":
        return c_type.endswith("*")
    if kind == "double":
        return c_type == "double"
    return not _NUMBER.match(kind) or c_type == "int64_t" or (c_type == "void*" and kind[0] == "u")
