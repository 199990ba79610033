"""Dependency files in make's syntax, as compilers and linkers write them."""

from __future__ import annotations

import os
import re

__all__ = ["read_depfile"]

_WORD = r"(?:\\.|[^\s\\])+"
_ESCAPED = r"\\(.)"


def read_depfile(path: str | os.PathLike[str]) -> list[str]:
    """The prerequisites of the first rule, in order, each once, as absolute paths. Raises `OSError`
    when there is no such file.
    """
    with open(path, "rb") as file:
        text = os.fsdecode(file.read()).replace("\\\n", " ")
    rule = text.partition(":")[2].partition("\n")[0]
    words = (re.sub(_ESCAPED, r"\1", word).replace("$$", "$") for word in re.findall(_WORD, rule))
    folder = os.path.dirname(os.path.abspath(path))
    return list(dict.fromkeys(os.path.join(folder, word) for word in words))
