"""Where Dynamo split a model into several graphs, and why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class GraphBreak:
    """A place in the model's code where Dynamo stopped recording and ran Python, and its reason."""

    place: str
    code: str
    reason: str

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        code = f" (`{self.code}`)" if self.code else ""
        return f"{where}{self.reason}{code}"


@contextmanager
def graph_breaks() -> Iterator[list[GraphBreak]]:
    """Collect the breaks of what is compiled in this block; the list is filled at its end."""
    from torch._dynamo.output_graph import graph_break_reasons

    before = len(graph_break_reasons)
    found: list[GraphBreak] = []
    try:
        yield found
    finally:
        for reason in graph_break_reasons[before:]:
            frame = reason.user_stack[-1] if reason.user_stack else None
            place = "" if frame is None else f"{_short(frame.filename)}:{frame.lineno}"
            code = "" if frame is None else (frame.line or "").strip()
            first = reason.reason.strip().partition("\n")[0].rstrip(".")
            broken = GraphBreak(place, code, first)
            if broken not in found:
                found.append(broken)


def _short(name: str) -> str:
    """Return a file as it is reached from the current folder, where it lies below it."""
    path = Path(name)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else name
