"""What a source's text and symbols say of its parameter struct and optional functions.

The struct is read for C and for entries that take `const void*`; for others include/bringup/glue.h
holds it against `params=`. A type behind a typedef or a macro is taken for right.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from bringup._language.c_call import CParameter
from bringup.jit.source.argument_check import Declared
from bringup.jit.source.declaration import declaration_in, functions_in
from bringup.jit.source.lexer import code_of

_HOOKS = ("can_implement", "workspace_size")
_ARGS_HOOK = "bringup_can_implement"
_ARGS_FORM = (
    f'with abi="args" the optional function is `BRINGUP_EXPORT const char* {_ARGS_HOOK}(void** '
    "args, int32_t n, const bringup_ctx* ctx)`"
)
_DIRECTIVE = "\1"  # stands for one that lies between the members
_STRUCT = re.compile(r"\bstruct\b\s*\w*\s*\{\s*(?:struct\s+)?bringup_params\s+\w+\s*;([^{}]*)\}")
_DECLARATION = re.compile(
    r"\s*((?:[A-Za-z_][\w:]*[\s*]+)+?[\s*]*)((?:\**\s*\w+\s*,\s*)*\**\s*\w+)\s*\Z"
)
_QUALIFIERS = re.compile(r"\b(?:const|volatile|struct|restrict|__restrict__|__restrict)\b|\bstd::")
_NUMBER = re.compile(r"(u?int64_t|(unsigned )?long( long)?( int)?|size_t|ptrdiff_t|u?intptr_t)\Z")
_NARROW = re.compile(r"(float|(unsigned )?(int|short|char)|unsigned|bool|_Bool|u?int(32|16|8)_t)\Z")
_SHOWN: Mapping[str, str] = {
    "void*": "a pointer", "const char*": "a pointer", "int64_t": "an int64_t", "double": "a double",
}  # fmt: skip


@lru_cache(maxsize=256)
def _read(text: str) -> tuple[tuple[tuple[str, str], ...] | None, tuple[str, ...]]:
    """Return the struct's members as (type, name), or None, and functions never used."""
    plain = code_of(text, _DIRECTIVE)
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


def check_text(text: str, entry: str, items: Sequence[CParameter]) -> str:
    """Return why the source does not fit the items of `params=`, or ""."""
    members, unused = _read(text)
    for name in unused:
        for near in difflib.get_close_matches(name, _HOOKS, 1, 0.85):
            if name not in (*_HOOKS, entry):
                return f"it defines {name}, which nothing calls; the optional function is {near}"
    declared = None if members is None else declaration_in(text, entry)
    if members is None or declared is None or "void" not in declared[-1].text:
        return ""  # the compiler tells which struct the entry gets
    if len(members) != len(items):
        return (
            f"its parameter struct has {len(members)} fields after bringup_params, params= has "
            f"{len(items)}: {', '.join(item.text for item in items)}"
        )
    names = [name for _, name in members]
    for i, (item, (kind, name)) in enumerate(zip(items, members, strict=True)):
        if reason := _misplaced(i, names, items):
            return reason
        if not _fits(kind, item.c_type):
            return (
                f"field {i + 1} of its parameter struct is {'a pointer' if kind == '*' else kind} "
                f"({name}), and params= has {item.text} there, which is {_SHOWN[item.c_type]}"
            )
    return ""


def check_args_text(text: str, entry: str) -> str:
    """Return why an "args" entry gets something else, or a function has no caller, or ""."""
    if not re.search(rf"\b{entry}\s*\(\s*void\s*\*\s*(\*|\w+\s*\[)", text):  # almost always
        declared = declaration_in(text, entry)
        if declared and (len(declared) > 3 or _stars(declared[0]) == 1):
            given = ", ".join(one.text for one in declared)
            return f"it gets ({given}), not (void** args, n, ctx): say what it gets with args="
    if "can_impl" not in text:  # which is most sources, and reading them takes time
        return ""
    for name in _read(text)[1]:
        near = difflib.get_close_matches(name, (_HOOKS[0], _ARGS_HOOK), 1, 0.85)
        if near and name not in (_ARGS_HOOK, entry):
            return f"it defines {name}, which nothing calls; {_ARGS_FORM}"
    declared = declaration_in(text, _ARGS_HOOK)
    if declared is None:
        return ""
    stars = [_stars(one) for one in declared]
    return "" if stars == [2, 0, 1] else f"it defines {_ARGS_HOOK} in another form; {_ARGS_FORM}"


def _stars(declared: Declared) -> int:
    return declared.text.count("*") + declared.text.count("[")


def check_args_symbols(exported: Iterable[str]) -> str:
    """Return the same for the symbols of what was built, wherever its functions were written."""
    mangled = f"{len(_ARGS_HOOK)}{_ARGS_HOOK}"
    names = set(exported)
    found = [name for name in names if name.startswith("_Z") and mangled in name]
    if not found or _ARGS_HOOK in names:
        return ""
    return f"it defines {_ARGS_HOOK} in another form ({min(found)}); {_ARGS_FORM}"


def _misplaced(i: int, names: Sequence[str], items: Sequence[CParameter]) -> str:
    """Return why the names of the fields do not fit item `i`, or ""."""
    item = items[i]
    if item.member:
        wanted = item.member
        there = f"has {names[i]} as field {i + 1}, params= calls it {wanted}"
        return "" if names[i] == wanted else f"its parameter struct {there}"
    wanted = item.argument_name
    named = {other.member for other in items} | {other.argument_name for other in items[:i]}
    if wanted not in names or names[i] == wanted or wanted in named:
        return ""
    return (
        f"its parameter struct has {wanted} as field {names.index(wanted) + 1}, params= as "
        f"{i + 1}; the order has to be the same"
    )


def _fits(kind: str, c_type: str) -> bool:
    """Return whether a field of this type takes such a value; one of an unknown type does."""
    if _NARROW.match(kind):
        return False
    if kind == "*":
        return c_type.endswith("*")
    if kind == "double":
        return c_type == "double"
    return not _NUMBER.match(kind) or c_type == "int64_t" or (c_type == "void*" and kind[0] == "u")
