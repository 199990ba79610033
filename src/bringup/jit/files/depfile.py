"""Dependency files in make's syntax, as compilers and linkers write them."""

from __future__ import annotations

import os
import re
from pathlib import Path

# Compilers escape a blank, and the backslashes before it, and `#`; another backslash is one.
_TOKEN = r"\\+[ \t#]?|[ \t]+|[^ \t\\]+"


def read_depfile(path: str | os.PathLike[str]) -> list[str]:
    """Return the first rule's prerequisites, absolute, each once. Raises `OSError`."""
    text = os.fsdecode(Path(path).read_bytes())
    rule = re.split(r"(?<!\\)\n", text.partition(":")[2], maxsplit=1)[0]
    folder = os.path.dirname(os.path.abspath(path))
    words: list[str] = []
    for line in rule.split("\\\n"):
        # GNU ld escapes nothing: a line is a name, blanks and all.
        name = line.strip()
        is_name = " " in name and os.path.isfile(os.path.join(folder, name))
        words += [name] if is_name else _words(line)
    return list(dict.fromkeys(os.path.join(folder, word) for word in words))


def is_whole(path: str | os.PathLike[str], *, ends_lines: bool) -> bool:
    """Return whether the file has a rule and is not cut off; `ends_lines`: the last ends too."""
    content = Path(path).read_bytes()
    goes_on = content.rstrip(b"\n").endswith(b"\\")
    return b":" in content and not goes_on and (content.endswith(b"\n") or not ends_lines)


def _words(line: str) -> list[str]:
    words = [""]
    for token in re.findall(_TOKEN, line):
        slashes, last = len(token) - len(token.lstrip("\\")), token[-1]
        if slashes and last in " \t":
            words[-1] += "\\" * (slashes // 2)
            if slashes % 2:
                words[-1] += last
            else:
                words.append("")
        elif slashes and last == "#":
            words[-1] += "\\" * (slashes - 1) + last
        elif token.isspace():
            words.append("")
        else:
            words[-1] += token
    return [word.replace("$$", "$") for word in words if word]
