"""Whether a build would read the same headers again: the content of those that it read, and the
places where another one could turn up and be found first.

Owns headers and searched places as they are remembered; which headers a build reads, only its
compiler knows.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bringup.jit._files import Stamp, as_stamp, file_digest, is_settled, stamp

__all__ = [
    "Header",
    "PortableHeader",
    "Searched",
    "portable",
    "read_header",
    "searched_before",
    "unchanged",
]

_SEPARATOR = "//"  # no normalised path contains it, and JSON reads it fast
_SYSTEM_DEPTH = 3  # <sys/cdefs.h>, <asm/x/y.h>: nobody includes by more components than this


class Header(NamedTuple):
    """A header that a build read. `seen` is None when it was too young for its stamp to prove
    anything.
    """

    path: str
    digest: str
    seen: Stamp | None


class Place(NamedTuple):
    """A folder where files that were not there would be read instead of what was.

    Attributes:
        folder: where they would appear.
        seen: its stamp, or None when that proves nothing. As long as the folder is untouched, no
            file appeared.
        absent: their paths in the folder.
    """

    folder: str
    seen: Stamp | None
    absent: str

    def untouched(self) -> bool:
        """Whether the folder proves that none of them has appeared."""
        return self.seen is not None and _stamp_or_none(self.folder) == self.seen

    def has_news(self) -> bool:
        """Whether one of them has appeared."""
        inside = os.path.join(self.folder, "")
        return any(os.path.lexists(inside + name) for name in self.names())

    def names(self) -> list[str]:
        """The absent files, from the folder."""
        return self.absent.split(_SEPARATOR)


class Searched(NamedTuple):
    """Where a build looked for its headers and found nothing."""

    places: tuple[Place, ...] = ()

    def holds(self) -> bool:
        """Whether there is still nothing."""
        return not any(not place.untouched() and place.has_news() for place in self.places)

    def renewed(self) -> Searched | None:
        """The same with the stamps of now, or None when something has appeared."""
        if all(place.untouched() for place in self.places):
            return self
        # By the folders of now: one may have come that is nearer.
        now = Searched.of(self.absent_files())
        # Looked for after the stamps were taken: what appears later changes a stamp.
        return None if any(place.has_news() for place in self.places) else now

    def absent_files(self) -> list[str]:
        """The paths of the files that were not there."""
        return [os.path.join(place.folder, name) for place in self.places for name in place.names()]

    def joined(self, other: Searched) -> Searched:
        """The files of both."""
        return Searched((*self.places, *other.places))

    @classmethod
    def of(cls, absent: Iterable[str]) -> Searched:
        """These files. One that is there after all counts as one that has appeared."""
        names: dict[str, list[str]] = {}
        for path in sorted(set(absent)):
            folder = _nearest_folder(path)
            names.setdefault(folder, []).append(path[len(os.path.join(folder, "")) :])
        places = []
        for folder, inside in names.items():
            place = Place(folder, _settled_stamp(folder), _SEPARATOR.join(inside))
            places.append(place._replace(seen=None) if place.has_news() else place)
        return cls(tuple(places))

    @classmethod
    def from_json(cls, places: Iterable[Sequence[object]]) -> Searched:
        """What `json.dumps` made of the places of one. Raises `ValueError` or `TypeError` when it
        is none.
        """
        return cls(
            tuple(
                Place(str(folder), as_stamp(seen) if seen else None, str(names))  # type: ignore[arg-type]
                for folder, seen, names in places
            )
        )


class PortableHeader(NamedTuple):
    """A header as another machine finds it: the name of a folder of the request (`source`,
    `bringup`, `include0`, ...), or nothing for one of the system, and the path from there.
    """

    root: str
    path: str
    digest: str

    def holds(self, roots: Sequence[tuple[str, str]], *, system: bool) -> bool:
        """Whether it is the same here. Headers of the system count as the same where `system` is
        false: without their compiler they are not there at all.
        """
        if not self.root:
            folder = ""
            if not system:
                return True
        else:
            folder = dict(roots).get(self.root, "")
            if not folder:
                return False
        try:
            return file_digest(os.path.join(folder, self.path)) == self.digest
        except (OSError, ValueError):
            return False


def read_header(path: str) -> Header:
    """What the header is now. Raises `OSError` when it is gone."""
    seen = stamp(path)
    settled = is_settled(seen)
    return Header(path, file_digest(path), seen if settled else None)


def unchanged(header: Header) -> bool:
    """Whether the header is what it was."""
    try:
        return stamp(header.path) == header.seen or file_digest(header.path) == header.digest
    except (OSError, ValueError, TypeError):
        return False  # it is gone, or the manifest is damaged


def portable(header: Header, roots: Sequence[tuple[str, str]]) -> PortableHeader:
    """The header by the folder of the request that it lies in, the innermost one."""
    holding = [
        (folder, name)
        for name, folder in roots
        if folder and header.path.startswith(os.path.join(folder, ""))
    ]
    if not holding:
        return PortableHeader("", header.path, header.digest)
    folder, name = max(holding, key=lambda found: len(found[0]))
    return PortableHeader(name, os.path.relpath(header.path, folder), header.digest)


def _stamp_or_none(folder: str) -> Stamp | None:
    try:
        return stamp(folder)
    except OSError:
        return None


def _settled_stamp(folder: str) -> Stamp | None:
    seen = _stamp_or_none(folder)
    return seen if seen is not None and is_settled(seen) else None


def _nearest_folder(path: str) -> str:
    folder = os.path.dirname(path)
    while folder != os.path.dirname(folder) and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder


def _included_as(path: str, folder: str) -> str:
    """What a file in `folder` may be included as, or "" when it is not in there."""
    inside = os.path.join(folder, "")
    return path.removeprefix(inside) if path.startswith(inside) else ""


def _is_later(path: str, start_ns: int) -> bool:
    try:
        return os.lstat(path).st_ctime_ns >= start_ns
    except OSError:
        return True  # not there


def searched_before(
    headers: Sequence[Header], source_folder: str, folders: Sequence[str], start_ns: int
) -> Searched:
    """Where a header of the same name would have been found before each of these.

    Args:
        headers: what a build read.
        source_folder: where the source lies; empty for a text.
        folders: the folders named by flags, in the order in which they are searched.
        start_ns: when the build began. A file that came later was not looked at, so it counts as
            one that was not there.
    """
    own = [folder for folder in (source_folder, *folders) if folder]
    read = {header.path for header in headers}
    mine = {path for path in read if any(_included_as(path, folder) for folder in own)}
    # `#include "x.h"` looks beside the file that includes it first.
    beside = {os.path.dirname(path) for path in mine} | {source_folder} - {""}
    wanted: set[str] = set()
    for path in read:
        if path not in mine:
            parts = path.split("/")
            names = ["/".join(parts[-n:]) for n in range(1, min(_SYSTEM_DEPTH, len(parts) - 1) + 1)]
            wanted.update(os.path.join(folder, name) for folder in own for name in names)
        for position, folder in enumerate(folders):
            if name := _included_as(path, folder):
                before = beside.union(folders[:position])
                wanted.update(os.path.join(other, name) for other in before)
    return Searched.of(path for path in wanted - read if _is_later(path, start_ns))
