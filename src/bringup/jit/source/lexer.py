"""What in the text of a C or C++ file is code, and what is a comment or a literal."""

from __future__ import annotations

import re

BLANK = r"[ \t\v\f\0]"  # within a line
HASH = r"(?:#|%:|\?\?=)"

_TOKENS = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))
    |(?P<literal>
        R(?:(?<!\wR)|(?<=\b[uUL]R)|(?<=\bu8R))"(?P<raw>[^()\\\s]{0,16})\(.*?\)(?P=raw)"
        |"(?:\\.|[^"\\\n])*"?
        |'(?:\\.|[^'\\\n])*'?)
    |[0-9](?<!\w[0-9])(?:'\w|[eEpP][+-]|[\w.])*""",
    re.DOTALL | re.VERBOSE,
)
_DIRECTIVE = re.compile(rf"^{BLANK}*{HASH}(?:\\\r?\n|[^\n])*", re.MULTILINE)


def without_comments(text: str) -> str:
    """Return the text with a blank for each comment."""
    return _TOKENS.sub(lambda found: " " if found["comment"] else found[0], text)


def code_of(text: str, directive: str = " ") -> str:
    """Return the text with comments and literals blank and directives as `directive`."""
    plain = _TOKENS.sub(
        lambda found: " " if found["comment"] or found["literal"] else found[0], text
    )
    return _DIRECTIVE.sub(lambda _: directive, plain)
