"""Where a compiler searches: a file that comes earlier in the order changes the build."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from bringup.jit.files.headers import Searched, is_file
from bringup.jit.source.include_scan import IncludeDirective, Untracked, mentions_of, probes_of
from bringup.jit.target.flags import include_directories

_SYSTEM_DEPTH = 3  # of names by which headers of an unknown folder may have been included


@dataclass(frozen=True)
class SearchPath:
    """The folders that a compiler searches for headers, each list in order."""

    source: str  # the folder of the source; empty for a text
    quoted: tuple[str, ...]  # for `"name"` alone: `-iquote`
    # For `<name>` and then for `"name"` too: of flags, then the compiler's own.
    bracketed: tuple[str, ...]
    system: tuple[str, ...] = ()  # those of `bracketed` that are the compiler's own

    @classmethod
    def of(
        cls, source: str, always: Sequence[str], flags: Sequence[str], system: Sequence[str]
    ) -> SearchPath:
        """Return a build's path: `always`, then the folders of `flags`, then the `system`'s."""
        named = {kind: include_directories(flags, kind) for kind in _KINDS}
        last = [*named["-isystem"], *system]
        # A folder that is the compiler's own keeps its place when -I names it.
        known = set(map(os.path.realpath, last))
        first = [
            folder for folder in (*always, *named["-I"]) if os.path.realpath(folder) not in known
        ]
        return cls(
            source,
            tuple(named["-iquote"]),
            tuple(dict.fromkeys((*first, *last, *named["-idirafter"]))),
            tuple(system),
        )

    @cached_property
    def own(self) -> tuple[str, ...]:
        others = (*self.quoted, *(one for one in self.bracketed if one not in self.system))
        return tuple(filter(None, (self.source, *others)))

    def is_system(self, path: str) -> bool:
        depth = {
            kind: max((len(folder) for folder in folders if _name_in(path, folder)), default=0)
            for kind, folders in (("own", self.own), ("system", self.system))
        }
        if not self.system:
            return not depth["own"]
        return depth["system"] > depth["own"]

    def candidates(self, asked: IncludeDirective, folder: str) -> Iterator[str]:
        """Yield where a header is looked for, in order, when a file in `folder` asks for it."""
        if os.path.isabs(asked.name):
            yield asked.name
            return
        if asked.quoted or asked.next:  # the next one may be one of those for "name" alone
            for searched in (folder, *self.quoted):
                if searched:
                    yield f"{searched}/{asked.name}"
        for searched in self.bracketed:
            yield f"{searched}/{asked.name}"


_KINDS = ("-I", "-iquote", "-isystem", "-idirafter")


@dataclass(frozen=True)
class HeaderSearch:
    """What a build found out of the file system."""

    searched: Searched  # where it looked, besides the files that it read
    probed: Searched  # the files that its probes asked for, there or not
    answers: tuple[str, ...]  # what the probes answered, in the order of the text
    untracked: tuple[Untracked, ...]  # directives of its own files whose effect is not known
    own: tuple[str, ...]  # the request's own files among those that it read, the source first
    says_names: bool  # whether names of these can reach what is compiled


def header_search(
    source: str,
    headers: Sequence[str],
    path: SearchPath,
    macros: Iterable[str],
    start_ns: int,
    *,
    forced: bool = False,
) -> HeaderSearch:
    """Return what a build of the file `source` found besides the content of the `headers` that it
    read. `macros`: of the command line, `NAME=value`; `forced`: flags include headers before the
    source. A file that came after `start_ns` counts as one that was not there.

    Raises `OSError` when a file is gone.
    """
    read = {os.path.normpath(header): header for header in headers}
    folders = {header: os.path.dirname(header) for header in headers} | {source: path.source}
    explained: set[str] = set()
    wanted: set[str] = set()
    for file, folder in folders.items():
        for asked in mentions_of(file).includes:
            passed: list[str] = []
            for candidate in path.candidates(asked, folder):
                found = os.path.normpath(candidate)
                if found in read and read[found] != file:  # `#include_next` passes its own name
                    explained.add(read[found])
                    wanted.update(passed)
                    break
                passed.append(candidate)
    own = [header for header in headers if not path.is_system(header)]
    # Where a macro or a flag names a header, it may be one that a line names too.
    computed = forced or any(mentions_of(file).computes for file in (source, *own))
    rest = [h for h in headers if h not in explained or (computed and h in own)]
    wanted |= _before(rest, own, path)
    absent = {file for file in wanted if os.path.normpath(file) not in read}
    probes = probes_of([source, *headers], macros)
    probed, answers = _answers(probes.asked, folders, path)
    return HeaderSearch(
        Searched.of(file for file in absent if _is_later(file, start_ns)),
        probed,
        answers,
        tuple(one for one in probes.untracked if one.path == source or one.path in own),
        (source, *own),
        any(mentions_of(file).says_names for file in (source, *own)),
    )


def endless_header(source: str, path: SearchPath) -> str:
    """Return a pipe or device that source or own headers include by its name, or ""."""
    waiting, seen = [(source, path.source)], {source, os.devnull}
    while waiting:
        file, folder = waiting.pop()
        for asked in mentions_of(file).includes:
            found = next(filter(is_file, path.candidates(asked, folder)), source)
            if found in seen:
                continue
            if not os.path.isfile(found):
                return found
            seen.add(found)
            if not path.is_system(found):
                waiting.append((found, os.path.dirname(found)))
    return ""


def _answers(
    probes: Iterable[tuple[str, IncludeDirective]], folders: dict[str, str], path: SearchPath
) -> tuple[Searched, tuple[str, ...]]:
    """Return the files that decide what probes answer, and the answers."""
    absent: set[str] = set()
    present: set[str] = set()
    answers = []
    for file, asked in probes:
        candidates = list(path.candidates(asked, folders[file]))
        there = [candidate for candidate in candidates if is_file(candidate)]
        if asked.next or not there:
            absent.update(set(candidates) - set(there))
        present.update(there if asked.next else there[:1])
        # From which folder the next one is searched is not told by the text.
        answer = [str(int(c in there)) for c in candidates] if asked.next else [str(bool(there))]
        answers.append(f"{asked.name}: {''.join(answer)}")
    return Searched.of(absent, present), tuple(answers)


def _before(headers: Sequence[str], own: Sequence[str], path: SearchPath) -> set[str]:
    """Return where computed `#include`s would have found headers before."""
    wanted: set[str] = set()
    folders = (*path.quoted, *path.bracketed)
    # `#include "x.h"` looks beside the file that includes it first.
    beside = {os.path.dirname(header) for header in own} | {path.source} - {""}
    for header in headers:
        names = {i: name for i, folder in enumerate(folders) if (name := _name_in(header, folder))}
        for position, name in names.items():
            before = beside.union(folders[:position])
            wanted.update(f"{folder}/{name}" for folder in before)
        if not names and header not in own:
            parts = header.split("/")
            depth = min(_SYSTEM_DEPTH, len(parts) - 1)
            tails = ["/".join(parts[-n:]) for n in range(1, depth + 1)]
            wanted.update(f"{folder}/{name}" for folder in path.own for name in tails)
    return wanted


def places_before(files: Iterable[str], folders: Sequence[str], start_ns: int) -> Searched:
    """Return where files that were found in a list of folders would have been found before."""
    wanted = {
        f"{folder}/{name}"
        for file in files
        for position, found_in in enumerate(folders)
        if (name := _name_in(file, found_in))
        for folder in folders[:position]
    }
    return Searched.of(path for path in wanted if _is_later(path, start_ns))


def _name_in(path: str, folder: str) -> str:
    """Return what a file in `folder` may be included as, or "" when it is not in there."""
    inside = os.path.join(folder, "")
    return path[len(inside) :] if path.startswith(inside) else ""


def _is_later(path: str, start_ns: int) -> bool:
    """Return whether a build that began then found no file there."""
    try:
        return not is_file(path) or os.stat(path).st_ctime_ns >= start_ns
    except OSError:
        return True
