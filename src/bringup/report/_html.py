"""Pages of HTML, each alone in its file: what stands on one."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from bringup._version import __version__
from bringup.report._figures import Bar
from bringup.report._table import Table
from bringup.report._template import drawn


@dataclass
class Section:
    """A part of a page: text, then bars, figures, then tables; what is empty is left out.

    Attributes:
        heading: its title.
        text: paragraphs.
        key: what the parts of a bar mean, at most five.
        bars: a chart.
        figures: pictures by `bars`, `intervals`, `curve`, `loglog`.
        tables: tables, each with its title.
    """

    heading: str
    text: list[str] = field(default_factory=list)
    key: Sequence[str] = ()
    bars: list[Bar] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)


@dataclass
class Page:
    """A page.

    Attributes:
        title: its title.
        headline: what is said first: a line in large letters, and others below it.
        facts: what was looked at, by name.
        sections: the rest.
    """

    title: str
    headline: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    sections: list[Section] = field(default_factory=list)

    def _repr_html_(self) -> str:
        return drawn("body", self)


def to_html(page: Page) -> str:
    """Return the page as one text. What comes from outside is escaped.

    Args:
        page: what is written.
    """
    return str(drawn("document", page)).lstrip()


def write_html(path: Path, page: Page, command: Sequence[str] = ()) -> None:
    """Write the page into a file; one of this name is replaced. It gets the date and the version.

    Args:
        path: the file.
        page: what is written.
        command: what was typed.

    Raises:
        OSError: the file cannot be written.
    """
    facts = {
        **page.facts,
        "written": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        "bringup": __version__,
        "command": shlex.join(command),
    }
    facts = {name: value for name, value in facts.items() if value}
    path.write_text(to_html(replace(page, facts=facts)), encoding="utf-8")
