"""Whether a build would read the same headers: their content, and where it looked for files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bringup.jit.files.identity import Stamp, as_stamp, file_digest, is_settled, stamp

_SEPARATOR = "//"  # between names; JSON reads one text faster than many
_PRESENT = "/"  # before the name of a file that was there; a name in a folder begins with none
_IS_THERE, _IS_NOT_THERE = "is there", "is not there"  # in place of a digest


class Header(NamedTuple):
    """A header that a build read. `seen` is None for one too young to have a stamp."""

    path: str
    digest: str
    seen: Stamp | None


class Place(NamedTuple):
    """A folder in which a build looked for files."""

    folder: str  # which
    # Its stamp, or None when that proves nothing. As long as the folder is untouched, no file came
    # or went.
    seen: Stamp | None
    names: str  # the paths of the files from the folder, joined; those that were there are marked

    def untouched(self) -> bool:
        """Return whether the folder proves that none of them came or went."""
        return self.seen is not None and _stamp_or_none(self.folder) == self.seen

    def has_news(self) -> bool:
        """Return whether one of them came or went."""
        inside = os.path.join(self.folder, "")
        return any(
            is_file(inside + name.removeprefix(_PRESENT)) != name.startswith(_PRESENT)
            for name in self.listed()
        )

    def listed(self) -> list[str]:
        """Return the files, from the folder; those that were there begin with a slash."""
        return self.names.split(_SEPARATOR)


class Searched(NamedTuple):
    """Where a build looked for files, and which of them were there."""

    places: tuple[Place, ...] = ()

    def holds(self) -> bool:
        return not any(not place.untouched() and place.has_news() for place in self.places)

    def is_younger_than(self, moment_ns: int) -> bool:
        """Return whether a folder of one of them was touched since then."""
        now = (_stamp_or_none(place.folder) for place in self.places)
        return any(seen is None or max(seen[2:]) >= moment_ns for seen in now)

    def files(self, *, present: bool) -> list[str]:
        """Return the paths of the files that were there, or of those that were not."""
        return [
            os.path.join(place.folder, name.removeprefix(_PRESENT))
            for place in self.places
            for name in place.listed()
            if name.startswith(_PRESENT) == present
        ]

    def joined(self, other: Searched) -> Searched:
        return Searched((*self.places, *other.places))

    @classmethod
    def of(cls, absent: Iterable[str], present: Iterable[str] = ()) -> Searched:
        """These files, which were there or not. What is otherwise by now counts as news."""
        names: dict[str, list[str]] = {}
        doubtful = set()
        for mark, paths in (("", absent), (_PRESENT, present)):
            for path in sorted(set(paths)):
                folder, certain = _nearest_folder(path)
                names.setdefault(folder, []).append(mark + path[len(os.path.join(folder, "")) :])
                if not certain:
                    doubtful.add(folder)
        places = []
        for folder, inside in names.items():
            seen = None if folder in doubtful else _settled_stamp(folder)
            place = Place(folder, seen, _SEPARATOR.join(inside))
            places.append(place._replace(seen=None) if place.has_news() else place)
        return cls(tuple(places))

    @classmethod
    def from_json(cls, places: Iterable[Sequence[object]]) -> Searched:
        """Read the places of one from JSON. Raises `ValueError` or `TypeError`."""
        return cls(
            tuple(
                Place(str(folder), as_stamp(seen) if seen else None, str(names))  # type: ignore[arg-type]
                for folder, seen, names in places
            )
        )


class PortableHeader(NamedTuple):
    """A header as another machine finds it: a folder of the request (`source`, `bringup`,
    `include0`, ...; "" for the system's) and the path from there; or a place whose digest says
    whether a file was there.
    """

    root: str
    path: str
    digest: str

    @property
    def is_place(self) -> bool:
        return self.digest in (_IS_THERE, _IS_NOT_THERE)

    @property
    def says_present(self) -> bool:
        return self.digest == _IS_THERE

    def holds(self, roots: Sequence[tuple[str, str]], *, system: bool) -> bool:
        """Return whether it is the same here; headers of the system count only with `system`."""
        if not self.root:
            folder = ""
            if not system:
                return True
        else:
            folder = dict(roots).get(self.root, "")
            if not folder:
                return False
        if self.is_place:
            return is_file(os.path.join(folder, self.path)) == self.says_present
        try:
            return file_digest(os.path.join(folder, self.path)) == self.digest
        except (OSError, ValueError):
            return False


def read_header(path: str) -> Header:
    """Return what the header is now. Raises `OSError` when it is gone."""
    seen = stamp(path)
    settled = is_settled(seen)
    return Header(path, file_digest(path), seen if settled else None)


def unchanged(header: Header) -> bool:
    try:
        return stamp(header.path) == header.seen or file_digest(header.path) == header.digest
    except (OSError, ValueError, TypeError):
        return False  # it is gone, or the manifest is damaged


def portable(header: Header, roots: Sequence[tuple[str, str]]) -> PortableHeader:
    """Return the header by the folder of the request that it lies in, the innermost one."""
    holding = [
        (folder, name)
        for name, folder in roots
        if folder and header.path.startswith(os.path.join(folder, ""))
    ]
    if not holding:
        return PortableHeader("", header.path, header.digest)
    folder, name = max(holding, key=lambda found: len(found[0]))
    return PortableHeader(name, os.path.relpath(header.path, folder), header.digest)


def portable_places(
    searched: Searched, roots: Sequence[tuple[str, str]]
) -> tuple[PortableHeader, ...]:
    """Return where files were looked for in folders of the request alone."""
    named = [
        portable(Header(path, _IS_THERE if present else _IS_NOT_THERE, None), roots)
        for present in (False, True)
        for path in searched.files(present=present)
    ]
    return tuple(place for place in named if place.root)


def is_file(path: str) -> bool:
    """Return whether a compiler that looks for this file finds one: anything but a folder."""
    try:
        return not stat.S_ISDIR(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _stamp_or_none(folder: str) -> Stamp | None:
    try:
        return stamp(folder)
    except OSError:
        return None


def _settled_stamp(folder: str) -> Stamp | None:
    seen = _stamp_or_none(folder)
    return seen if seen is not None and is_settled(seen) else None


def _nearest_folder(path: str) -> tuple[str, bool]:
    """Return a file's innermost existing folder, and whether its stamp proves that nothing came."""
    certain = not os.path.islink(path)
    folder = os.path.dirname(path)
    while folder != os.path.dirname(folder) and not os.path.isdir(folder):
        certain = certain and not os.path.islink(folder)
        folder = os.path.dirname(folder)
    return folder, certain
