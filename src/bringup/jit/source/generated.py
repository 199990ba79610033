"""What generated sources are made of: the author's source in them, texts, the name of the entry."""

from __future__ import annotations

from bringup.jit.source.source import Source

ENTRY = "bringup_run"


def included(source: Source) -> str:
    """Return the lines that bring a source into a generated one: its text, or an include."""
    if source.path is not None:
        return f'#include "{source.file_name}"'
    return f'#line 1 "{source.name}"\n{source.text}\n#line 1 "{source.name} (its entry)"'


def c_text(text: str) -> str:
    """Return a text for C, with what it cannot show replaced."""
    escaped = text.encode("ascii", "replace").decode().replace("\\", "/").replace('"', "'")
    return f'"{escaped}"'
