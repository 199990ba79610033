"""How pages look: the macros of `page.html`, beside this file, which escape what they are given."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any


def drawn(macro: str, *arguments: object) -> str:
    """Return what a macro of the template makes; other macros take it as it is."""
    text: str = getattr(_macros(), macro)(*arguments)
    return text


@functools.cache
def _macros() -> Any:
    import jinja2  # nothing but pages needs it

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").module
