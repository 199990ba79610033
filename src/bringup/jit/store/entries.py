"""What a store answers with: an entry, and how it is found where its compiler is not known."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from bringup.jit.files.headers import Header, PortableHeader, Searched


class Hit(NamedTuple):
    """A verified entry, and what has to stay the same for it to hold."""

    path: Path
    key: str
    headers: tuple[Header, ...]
    searched: Searched = Searched()
    sha256: str = ""  # of the binary, where headers and searched are all that it was built from


class Origin(NamedTuple):
    """How an entry is found without its compiler."""

    key: str
    machine: str
    requires: tuple[str, ...]
    headers: tuple[PortableHeader, ...]
    also: tuple[str, ...] = ()  # keys of other requests that it answers
