"""The headers that a text includes, and the probes (`__has_include`) that decide what is compiled.

A compiler says which headers it read, not which probes it answered nor where else it looked: a
probe whose operand the text does not tell is `Untracked`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from bringup.jit.files.identity import file_digest, read_bytes
from bringup.jit.source.lexer import BLANK, HASH, without_comments

_B = BLANK.encode()
_HASH = HASH.encode()
_INCLUDE = re.compile(
    rb"^%b*%b%b*(?:include|include(_next)|import)%b*" % (_B, _HASH, _B, _B)
    + rb'(?:"([^"\n]+)"|<([^>\n]+)>)',
    re.MULTILINE,
)
_COMPUTED = re.compile(
    rb"^%b*%b%b*(?:include|include_next|import)%b+[A-Za-z_]" % (_B, _HASH, _B, _B), re.MULTILINE
)
_ASSEMBLED = re.compile(rb'\.(?:incbin\b|include[ \t]+(?=\\?"))(?:[ \t]*\\?"(/[^"\\\n]+)\\?")?')
_SPLICE = re.compile(rb"\\%b*\r?\n" % _B)  # gcc allows blanks behind the backslash
_TRIGRAPH = b"??/"  # for a backslash, where the language has them
# The beginning of a probe's name, or the end of one, to which ## may add the rest.
_BEGUN = r"\b__has(?:_(?:i(?:n(?:c(?:l(?:u(?:d)?)?)?)?)?)?|_e(?:m(?:b(?:e)?)?)?)?\b"
_ENDED = r"\ba?s_include\b"
_SUSPECT = re.compile(rf"has_include|has_embed|\bembed\b|{_BEGUN}|{_ENDED}".encode(), re.IGNORECASE)
_NAMES = re.compile(
    rb"__FILE__|__BASE_FILE__|__FILE_NAME__|__builtin_FILE\b|source_location|\bassert[ \t]*\("
)
_DIRECTIVE = re.compile(rf"^{BLANK}*{HASH}{BLANK}*(if|elif|define|embed)\b([^\n]*)", re.MULTILINE)
_DEFINITION = re.compile(rf"{BLANK}*([A-Za-z_]\w*)(?:\(([^)]*)\))?(.*)\Z", re.DOTALL)
# Behind this a name is asked for as a macro, not called.
_DEFINED = re.compile(rf"\bdefined{BLANK}*\(?{BLANK}*\Z")
_OPENING = re.compile(rf"{BLANK}*\(")
_LITERAL = re.compile(rf'{BLANK}*(?:"([^"\n]+)"|<([^>\n]+)>)\s*\Z')
_WORD = re.compile(rf"{BLANK}*([A-Za-z_]\w*)\s*\Z")
_PASTED = re.compile(rf"{_BEGUN}|{_ENDED}|\b__has_embed\b(?={BLANK}*\()")


@dataclass(frozen=True)
class IncludeDirective:
    """A header by the name that a text has for it."""

    name: str  # what stands between the quotes or brackets
    quoted: bool  # whether the folder of the file that asks is searched too
    next: bool = False  # whether the search begins behind that file's own folder


@dataclass(frozen=True)
class Untracked:
    """A directive whose effect depends on files that the text does not tell."""

    path: str
    text: str


@dataclass(frozen=True)
class Mentions:
    """What one file says."""

    includes: tuple[IncludeDirective, ...]  # what its `#include` lines name literally
    suspect: bool  # whether it may probe or embed
    says_names: bool  # whether names of files can reach what is compiled of it
    computes: bool  # whether a macro stands for the name in one of its `#include` lines
    says_time: bool  # whether it names the time of its last change
    # The files that its assembly text names by literal absolute paths; None when it names others
    # too.
    assembles: tuple[str, ...] | None


@dataclass(frozen=True)
class _Directive:
    kind: str
    text: str


class _Probe(NamedTuple):
    """That a macro asks for a file: `parameter` is the number of the argument that names it."""

    parameter: int
    next: bool


_Macros: TypeAlias = dict[str, frozenset[_Probe]]


_BUILT_IN: _Macros = {
    "__has_include": frozenset([_Probe(0, False)]),
    "__has_include_next": frozenset([_Probe(0, True)]),
}


@dataclass(frozen=True)
class Probes:
    """The probes of each file, in order, and what cannot be tracked."""

    asked: tuple[tuple[str, IncludeDirective], ...]
    untracked: tuple[Untracked, ...]


def mentions_of(path: str) -> Mentions:
    """Return what the file at `path` says. Raises `OSError`."""
    return _mentions(path, file_digest(path))


@lru_cache(maxsize=8192)
def _mentions(path: str, digest: str) -> Mentions:
    content = b"\n".join(_spliced(read_bytes(path)))
    assembled = _ASSEMBLED.findall(content)
    includes = [
        IncludeDirective(
            (quoted or bracketed).decode(errors="surrogateescape"), bool(quoted), bool(is_next)
        )
        for is_next, quoted, bracketed in _INCLUDE.findall(content)
    ]
    return Mentions(
        tuple(dict.fromkeys(includes)),
        _SUSPECT.search(content) is not None,
        _NAMES.search(content) is not None,
        _COMPUTED.search(content) is not None,
        b"__TIMESTAMP__" in content,
        tuple(map(os.fsdecode, assembled)) if all(assembled) else None,
    )


def _spliced(content: bytes) -> tuple[bytes, ...]:
    """Return the content with lines joined, with and without trigraphs."""
    content = content.removeprefix(b"\xef\xbb\xbf")
    readings = [content]
    if _TRIGRAPH in content:
        readings.append(content.replace(_TRIGRAPH, b"\\"))
    return tuple(_SPLICE.sub(b"", one) if b"\\" in one else one for one in readings)


@lru_cache(maxsize=1024)
def _directives(path: str, digest: str) -> tuple[_Directive, ...]:
    """Return the conditions and definitions of a file, without comments."""
    found = []
    for content in _spliced(read_bytes(path)):
        code = without_comments(content.decode(errors="surrogateescape"))
        found += [_Directive(*one.groups()) for one in _DIRECTIVE.finditer(code)]
    return tuple(dict.fromkeys(found))


def _directives_of(path: str) -> tuple[_Directive, ...]:
    return _directives(path, file_digest(path))


def probes_of(paths: Sequence[str], command_line: Iterable[str] = ()) -> Probes:
    """Return the probes of files that one build read; `command_line`: macros. Raises `OSError`."""
    given = [_Directive("define", f" {macro.replace('=', ' ', 1)}") for macro in command_line]
    suspects = {path: _directives_of(path) for path in paths if mentions_of(path).suspect}
    if not suspects and not any("has_include" in directive.text for directive in given):
        return Probes((), ())
    macros = dict(_BUILT_IN)
    searched: set[str] = set()
    while True:
        _learn(macros, [*given, *(one for found in suspects.values() for one in found)])
        # Another name for a probe may be used where nothing else looks like one.
        names = {name for name in macros if not _SUSPECT.search(name.encode())} - searched
        if not names:
            break
        searched |= names
        wanted = _either(tuple(sorted(names)))
        for path in paths:
            if path not in suspects and wanted.search(read_bytes(path).decode("latin-1")):
                suspects[path] = _directives_of(path)
    reader = _Reader(macros, paths, given)
    found = [(path, one) for path in paths if path in suspects for one in reader.read(path)]
    return Probes(
        tuple((path, one) for path, one in found if isinstance(one, IncludeDirective)),
        tuple(one for _, one in found if isinstance(one, Untracked)),
    )


def _learn(macros: _Macros, directives: Sequence[_Directive]) -> None:
    """Add other names for probes, and macros that pass their parameters to probes."""
    definitions = [_definition(one) for one in directives if one.kind == "define"]
    before = -1
    while before != (before := sum(map(len, macros.values()))):
        for name, parameters, body in definitions:
            found = set(macros.get(body.strip(), ()))
            for is_next, operand in _calls(body, macros):
                if (number := _number(operand, parameters)) is not None:
                    found.add(_Probe(number, is_next))
            if found:
                macros[name] = macros.get(name, frozenset()) | found


def _definition(directive: _Directive) -> tuple[str, tuple[str, ...], str]:
    """Name, parameters and body."""
    found = _DEFINITION.match(directive.text)
    if found is None:
        return "", (), ""
    return found[1], tuple(map(str.strip, (found[2] or "").split(","))), found[3]


def _calls(text: str, macros: _Macros) -> Iterator[tuple[bool, str | None]]:
    """Yield for each probe whether it is of the `_next` form, and its operand or None."""
    for found in _either(tuple(macros)).finditer(text):
        if _DEFINED.search(text[: found.start()]):
            continue
        operand = _operands(text, found.end())
        whole = operand is None or found[0] in _BUILT_IN
        parts = [operand] if whole else str(operand).split(",")
        for probe in sorted(macros[found[0]]):
            yield probe.next, parts[probe.parameter] if probe.parameter < len(parts) else None


def _number(operand: str | None, parameters: Sequence[str]) -> int | None:
    word = _WORD.match(operand) if operand is not None else None
    return parameters.index(word[1]) if word and word[1] in parameters else None


@lru_cache(maxsize=64)
def _either(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b")


def _operands(text: str, start: int) -> str | None:
    """Return what stands in the parentheses that open at `start`, or None when none do."""
    opening = _OPENING.match(text, start)
    if opening is None:
        return None
    depth = 1
    for position in range(opening.end(), len(text)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth == 0:
            return text[opening.end() : position]
    return None


class _Reader:
    def __init__(self, macros: _Macros, paths: Sequence[str], given: Sequence[_Directive]) -> None:
        self._macros = macros
        self._paths = paths
        self._given = given

    def read(self, path: str) -> Iterator[IncludeDirective | Untracked]:
        """Yield what one file asks for, in order."""
        for directive in _directives_of(path):
            shown = f"#{directive.kind}{directive.text}".rstrip()
            if directive.kind == "embed" or _PASTED.search(directive.text):
                yield Untracked(path, shown)
                continue
            parameters: Sequence[str] = ()
            text = directive.text
            if directive.kind == "define":
                _, parameters, text = _definition(directive)
                if text.strip() in self._macros:
                    continue  # another name: its uses count
            for is_next, operand in _calls(text, self._macros):
                if _number(operand, parameters) is not None:
                    continue  # it is passed on: the uses of that macro count
                asked = self._resolved(operand, is_next)
                yield from asked
                if not asked:
                    yield Untracked(path, shown)

    def _resolved(self, operand: str | None, is_next: bool) -> list[IncludeDirective]:
        """Return what an operand may stand for; nothing when the text does not tell."""
        found: list[IncludeDirective] = []
        waiting, seen = [operand], set[str]()
        while waiting:
            text = waiting.pop()
            if text is not None and (literal := _LITERAL.match(text)):
                found.append(
                    IncludeDirective(literal[1] or literal[2], literal[1] is not None, is_next)
                )
                continue
            word = _WORD.match(text) if text is not None else None
            bodies = self._bodies(word[1]) if word else []
            if word is None or not bodies:
                return []
            if word[1] not in seen:
                seen.add(word[1])
                waiting += bodies
        return found

    def _bodies(self, name: str) -> list[str]:
        """Return all that a macro is defined as, in any of the files."""
        everywhere = [*self._given, *(one for path in self._paths for one in _directives_of(path))]
        definitions = (_definition(one) for one in everywhere if one.kind == "define")
        return [body for known, _, body in definitions if known == name]
