"""What a source says of a function: the types of its parameters, as far as the text shows them.

Only for what has to be known before the compiler runs, and for what C converts without a word (a
64-bit number into an `int`). A type behind a typedef or a macro stays unknown here and is the
compiler's business.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bringup._language.c_call import CTYPES, CParameter, ValueKind
from bringup.jit.source.lexer import code_of
from bringup.jit.source.source import Source

__all__ = ["Declared", "as_declared", "declaration_in", "functions_in"]

_FUNCTION = re.compile(r"\b([A-Za-z_]\w*)\s*\(((?:[^(){};]|\([^(){};]*\))*)\)[^(){};=]*[{;]")
_QUALIFIERS = re.compile(r"\b(const|volatile|restrict|__restrict__|__restrict|register|struct)\b")
_NAME = re.compile(r"\b[A-Za-z_]\w*\s*(\[\w*\])?\Z")
_BEFORE_CALLS = frozenset(("return", "else", "do", "case", "throw", "co_return", "co_await"))
_KEYWORDS = frozenset(("if", "for", "while", "switch", "return", "sizeof", "defined"))

_WORDS: Mapping[str, str] = {
    "char": "i8", "signed char": "i8", "unsigned char": "u8", "short": "i16", "int": "i32",
    "unsigned": "u32", "unsigned int": "u32", "long": "i64", "long int": "i64",
    "long long": "i64", "unsigned long": "u64", "unsigned long long": "u64", "size_t": "u64",
    "ptrdiff_t": "i64", "float": "f32", "double": "f64", "bool": "bool", "_Bool": "bool",
    **{f"{u}int{bits}_t": f"{u or 'i'}{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)},
    **{f"std::{u}int{bits}_t": f"{u or 'i'}{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
_DTYPES: Mapping[str, str] = {
    "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16",
    "u32": "uint32", "u64": "uint64", "f32": "float32", "f64": "float64", "bool": "bool",
    "i8": "int8",
}  # fmt: skip
# Bytes, of whatever.
_UNTYPED = frozenset(("char", "unsigned char", "uint8_t", "std::uint8_t", "void"))


@dataclass(frozen=True)
class Declared:
    """The type of one parameter.

    Attributes:
        text: as it stands there.
        word: what `c_call` calls the type of a number, or "".
        dtype: the dtype whose elements a pointer leads to, or "".
    """

    text: str
    word: str
    dtype: str


def declaration_in(text: str, function: str) -> tuple[Declared, ...] | None:
    """The parameters of a function of a source; None when the text does not show them, or shows
    several functions of the name.
    """
    plain = code_of(text)
    seen: set[tuple[Declared, ...] | None] = set()
    for found in _FUNCTION.finditer(plain):
        if found[1] == function and _is_declared(plain[: found.start()].rstrip()):
            seen.add(_parameters(found[2]))
    kinds = {None if one is None else tuple((d.word, d.dtype) for d in one) for one in seen}
    return next(iter(seen)) if len(kinds) == 1 else None


def _is_declared(before: str) -> bool:
    """Whether what stands before a name is a type, and not an expression that the name is in."""
    last = re.search(r"\w+\Z", before)
    if last is not None:
        return last[0] not in _BEFORE_CALLS
    return before.endswith(("*", "&", ">", "::"))


def _parameters(text: str) -> tuple[Declared, ...] | None:
    if re.search(r"[<=(]|\.\.\.", text):  # template arguments, defaults, functions, any number
        return None
    parts = [part.strip() for part in text.split(",")]
    return () if parts in ([""], ["void"]) else tuple(map(_declared, parts))


def functions_in(text: str) -> list[str]:
    """The names of the functions that a source defines or declares, as far as it shows."""
    names = (found[1] for found in _FUNCTION.finditer(code_of(text)))
    return [name for name in dict.fromkeys(names) if name not in _KEYWORDS]


def _declared(text: str) -> Declared:
    plain = " ".join(_QUALIFIERS.sub(" ", text).split())
    is_array = plain.endswith("]")
    base = plain if plain in _WORDS or plain.endswith("*") else _NAME.sub("", plain).strip()
    stars = base.count("*") + is_array
    base = base.replace("*", "").strip()
    word = _WORDS.get(base, "")
    if stars == 0:
        return Declared(text, word, "")
    typed = stars == 1 and base not in _UNTYPED
    return Declared(text, "", _DTYPES.get(word, "") if typed else "")


def as_declared(
    source: Source, parameters: Sequence[CParameter], where: str, *, values: bool = False
) -> tuple[CParameter, ...]:
    """The parameters as the source declares them: whole numbers with the range of their type,
    addresses with the dtype of their elements. With `values` its position in the grid comes first.

    Raises `ValueError` when the function takes another number of parameters, or is not there.
    """
    text = source.content().decode(errors="replace")
    declared = declaration_in(text, source.entry)
    if declared is None:
        _refuse_unknown(source, text, where)
        return tuple(parameters)
    if values:
        _check_device_code(source, text, declared, where)
        declared = declared[1:]
    if len(declared) != len(parameters):
        shown = ", ".join(one.text for one in declared)
        raise ValueError(
            f"{where}: {source.entry}({shown}) takes {len(declared)} parameters, args= has "
            f"{len(parameters)}: {', '.join(p.text for p in parameters)}"
        )
    return tuple(map(_matched, parameters, declared))


def _check_device_code(source: Source, text: str, declared: Sequence[Declared], where: str) -> None:
    """Device code with plain arguments returns nothing, and gets its position first."""
    position = declared[0].text if declared else ""
    if not re.fullmatch(r"(const\s+)?bringup_position(\s+const)?\s*\*\s*\w*", position):
        raise ValueError(
            f"{where}: {source.entry}({', '.join(one.text for one in declared)}) must take its "
            "place in the grid first: const bringup_position* at, of bringup/device.h"
        )
    returned = re.search(rf"(\w+|\*)\s*\b{source.entry}\s*\(", code_of(text))
    if returned is not None and returned[1] != "void":
        raise ValueError(
            f"{where}: {source.entry} returns {returned[1]}, which nobody reads: device code with "
            "plain arguments returns void"
        )


def _refuse_unknown(source: Source, text: str, where: str) -> None:
    """A function whose name does not even occur cannot be there, unless another file brings it."""
    seen = re.search(rf"\b{source.entry}\b", text) or "##" in text
    if seen or (re.search(r"^\s*#\s*include", text, re.MULTILINE) and not functions_in(text)):
        return
    if re.search(r'^\s*#\s*include\s*"', text, re.MULTILINE):
        return
    known = ", ".join(functions_in(text)) or "none"
    raise ValueError(
        f"{where}: {source} has no function {source.entry!r} (it has {known}); name it with entry="
    )


def _matched(parameter: CParameter, declared: Declared) -> CParameter:
    if declared.word:
        return parameter.declared(CTYPES[declared.word])
    known = parameter.dtype or parameter.address_of < 0 or parameter.kind is not ValueKind.POINTER
    return parameter if known or not declared.dtype else replace(parameter, dtype=declared.dtype)
