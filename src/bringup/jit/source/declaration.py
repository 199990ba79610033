"""What a source and the headers beside it show of a function: the types of its parameters.

For what has to be known before the compiler runs, and for what C converts without a word. A type of
other headers stays unknown: the generated entry holds it against what is passed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from bringup._language.c_call import CParameter
from bringup._language.signature import Argument
from bringup.jit.source.argument_check import DTYPES, UNTYPED, Declared, check_written, fit, word_of
from bringup.jit.source.lexer import code_of, without_comments
from bringup.jit.source.source import Source

_FUNCTION = re.compile(r"\b([A-Za-z_]\w*)\s*\(((?:[^(){};]|\([^(){};]*\))*)\)[^(){};=]*[{;]")
_QUALIFIERS = re.compile(
    r"\b(const|volatile|restrict|__restrict__|__restrict|register|struct|enum)\b|&|\bstd::"
)
_NAME = re.compile(r"\b[A-Za-z_]\w*\s*(\[\w*\])?\Z")
_BEFORE_CALLS = frozenset(("return", "else", "do", "case", "throw", "co_return", "co_await"))
_KEYWORDS = frozenset(("if", "for", "while", "switch", "return", "sizeof", "defined"))
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
# New names of types; an enum is what C converts to it.
_NEW_NAMES = (
    re.compile(r"\btypedef\s+(?P<type>[\w\s:*]+?[\s*])(?P<name>\w+)\s*;"),
    re.compile(r"\busing\s+(?P<name>\w+)\s*=\s*(?P<type>[\w\s:*]+);"),
    re.compile(
        r"\benum\s+(?:class\s+|struct\s+)?(?P<name>\w+)\s*(?::(?P<type>[\w\s:]+))?(?P<body>\{[^{}]*)"
    ),
    re.compile(r"\btypedef\s+enum\b[^{};]*(?P<type>)(?P<body>\{[^{}]*)\}\s*(?P<name>\w+)\s*;"),
)
_MACRO = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(?P<name>\w+)[ \t]+(?P<type>[A-Za-z_][\w \t*]*)$", re.MULTILINE
)


def declaration_in(
    text: str, function: str, words: Mapping[str, str] = MappingProxyType({})
) -> tuple[Declared, ...] | None:
    """Return a function's parameters; None without one, or several. `words`: not C's, to C's."""
    plain, types = code_of(text), {**words, **_new_names(text)}
    seen: list[tuple[Declared, ...] | None] = []
    for found in _FUNCTION.finditer(plain):
        if found[1] == function and _is_declared(plain[: found.start()].rstrip()):
            seen.append(_parameters(found[2], types))
    kinds = {None if one is None else tuple(replace(d, text="") for d in one) for one in seen}
    return seen[0] if len(kinds) == 1 else None


def _new_names(text: str) -> dict[str, str]:
    """Return what names of types stand for; not those with several meanings."""
    plain = code_of(text)
    found = [one for pattern in _NEW_NAMES for one in pattern.finditer(plain)]
    meant: dict[str, set[str]] = {}
    for one in [*found, *_MACRO.finditer(without_comments(text))]:
        groups = one.groupdict()
        of_enum = "int" if "-" in (groups.get("body") or "") else "unsigned"
        meant.setdefault(one["name"], set()).add((one["type"] or of_enum).strip())
    return {name: types.pop() for name, types in meant.items() if len(types) == 1}


def _is_declared(before: str) -> bool:
    """Return whether a type, and no expression, stands before a name."""
    last = re.search(r"\w+\Z", before)
    if last is not None:
        return last[0] not in _BEFORE_CALLS
    return before.endswith(("*", "&", ">", "::"))


def _parameters(text: str, types: Mapping[str, str]) -> tuple[Declared, ...] | None:
    if re.search(r"[<=(]|\.\.\.", text):  # template arguments, defaults, functions, any number
        return None
    parts = [part.strip() for part in text.split(",")]
    return () if parts in ([""], ["void"]) else tuple(_declared(part, types) for part in parts)


def functions_in(text: str) -> list[str]:
    """Return the names of the functions that a source defines or declares, as far as it shows."""
    names = (found[1] for found in _FUNCTION.finditer(code_of(text)))
    return [name for name in dict.fromkeys(names) if name not in _KEYWORDS]


def _declared(text: str, types: Mapping[str, str]) -> Declared:
    meant = re.sub(r"\w+", lambda word: word[0] if types.get(word[0], word[0]) else " ", text)
    for _ in range(8):  # names of names
        base, stars = _base_of(meant)
        if word_of(base) or base not in types:
            break
        kept = re.sub(r"\bconst\b", " ", meant) if "*" in types[base] else meant  # the address is
        meant = re.sub(rf"\b{base}\b", f" {types[base]} ", kept, count=1)
    word = word_of(base)
    constant = stars > 0 and bool(re.search(r"\bconst\b", re.split(r"[*\[]", meant)[0]))
    typed = stars == 1 and base not in UNTYPED
    dtype = DTYPES.get(word, "") if typed else ""
    spelled = f"enum {base}" if re.search(r"\benum\b", meant) else base
    return Declared(text, "" if stars else word, dtype, base, spelled, stars, constant)


def _base_of(text: str) -> tuple[str, int]:
    """Return the type without its qualifiers, and how many addresses lead to it."""
    plain = " ".join(_QUALIFIERS.sub(" ", text).split())
    is_array = plain.endswith("]")
    named = not word_of(plain) and not plain.endswith("*")
    base = (_NAME.sub("", plain).strip() or plain) if named else plain
    return base.replace("*", "").strip(), base.count("*") + is_array


def declared_in(
    source: Source, entry: str, words: Mapping[str, str] = MappingProxyType({})
) -> tuple[Declared, ...] | None:
    """Return the parameters in a source or the headers beside it, or None; see `declaration_in`."""
    text = source.content().decode(errors="replace")
    declared = declaration_in(text, entry, words)
    if declared is None or any(not one.word and not one.dtype for one in declared):
        declared = declaration_in(_with_headers(text, source), entry, words)
    if declared is not None and "template" in text:  # a type may be a parameter of the function's
        return tuple(replace(one, spelled="") for one in declared)
    return declared


def check_returns_nothing(source: Source, entry: str) -> None:
    """Raise `ValueError` when device code with plain arguments returns something."""
    plain = code_of(source.content().decode(errors="replace"))
    returned = re.search(rf"(\w+|\*)\s*\b{entry}\s*\(", plain)
    if returned is not None and returned[1] != "void":
        raise ValueError(
            f"{entry} returns {returned[1]}, which nothing reads: device code with plain arguments "
            "returns void"
        )


def after_position(entry: str, declared: Sequence[Declared]) -> tuple[Declared, ...]:
    """Return the parameters behind the place in the grid. Raises `ValueError` without one."""
    position = declared[0].text if declared else ""
    if not re.fullmatch(r"(const\s+)?bringup_position(\s+const)?\s*\*\s*\w*", position):
        raise ValueError(
            f"{entry}({', '.join(one.text for one in declared)}) must take its place in the grid "
            "first: const bringup_position* at, of bringup/device.h"
        )
    return tuple(declared[1:])


def as_declared(
    source: Source,
    declared: Sequence[Declared] | None,
    parameters: Sequence[CParameter],
    where: str,
    signature: Sequence[Argument] = (),
) -> tuple[CParameter, ...]:
    """Return the parameters as the source declares them: whole numbers with their type's range,
    addresses with their elements' dtype. Raises `ValueError` where they do not fit.
    """
    if declared is None:
        _refuse_unknown(source, where)
        return tuple(parameters)
    if len(declared) != len(parameters):
        shown = ", ".join(one.text for one in declared)
        raise ValueError(
            f"{where}: {source.entry}({shown}) takes {len(declared)} parameters, args= has "
            f"{len(parameters)}: {', '.join(p.text for p in parameters)}"
        )
    values = source.abi == "values"
    fitted = [
        fit(parameter, one, f"{where}: {source.entry}()", values=values, signature=signature)
        for parameter, one in zip(parameters, declared, strict=True)
    ]
    check_written(parameters, declared, f"{where}: {source.entry}()", signature)
    return tuple(fitted)


def _with_headers(text: str, source: Source) -> str:
    """Return the text behind those of the headers that lie beside it."""
    found: dict[str, str] = {}
    folder = Path(source.directory) if source.path is not None else None
    waiting = _INCLUDE.findall(text) if folder is not None else []
    while folder is not None and waiting and len(found) < 64:
        name = waiting.pop()
        if name not in found and (folder / name).is_file():
            found[name] = (folder / name).read_text(errors="replace")
            waiting += _INCLUDE.findall(found[name])
    return "\n".join([*found.values(), text])


def _refuse_unknown(source: Source, where: str) -> None:
    """Refuse a name that does not occur, unless another file may bring it."""
    text = source.content().decode(errors="replace")
    seen = re.search(rf"\b{source.entry}\b", text) or "##" in text
    if seen or (re.search(r"^\s*#\s*include", text, re.MULTILINE) and not functions_in(text)):
        return
    if re.search(r'^\s*#\s*include\s*"', text, re.MULTILINE):
        return
    known = ", ".join(functions_in(text)) or "none"
    raise ValueError(
        f"{where}: {source} has no function {source.entry!r} (it has {known}); name it with entry="
    )
