"""A source that failed is not compiled again until something changes that it could depend on.

Only what the source is to blame for is kept, no compiler that was killed or ran out of anything.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bringup.errors import CompileError
from bringup.jit.builder.build import read_dependencies, search_of_build
from bringup.jit.builder.diagnose import operator_prefix
from bringup.jit.builder.request import Request
from bringup.jit.files.headers import Header, Searched, read_header, unchanged
from bringup.jit.files.identity import as_stamp, bytes_digest, read_bytes
from bringup.jit.files.layout import StoreLayout, StoreUnwritableError, replace_file
from bringup.jit.store.prune import FAILED
from bringup.jit.target.flags import include_directories
from bringup.jit.target.toolchain import compiler_environment

_TO_BLAME = re.compile(
    r"^[^\s:][^\n:]*:\d+(:\d+)?: (fatal )?error: |undefined reference to|required symbol", re.M
)
_OUT_OF_RESOURCES = re.compile(
    r"No space left on device|Disk quota exceeded|File too large|[Oo]ut of memory"
    r"|[Cc]annot allocate memory|memory exhausted|Killed|signal terminated program"
    r"|internal compiler error|Too many open files|Resource temporarily unavailable"
    r"|Input/output error|Text file busy|the compiler was stopped"
)
_LINKED = re.compile(r"-(l|L|Wl,|Xlinker)")
_SEARCH_LIST = re.compile(r"^ (/\S+)$", re.M)  # of `-v`: a folder a line, indented by one
_QUESTION_SECONDS = 60


def _is_lasting(error: CompileError, flags: Sequence[str]) -> bool:
    if error.status is None or error.status < 0 or _OUT_OF_RESOURCES.search(error.log):
        return False
    if not _TO_BLAME.search(error.log):
        return False
    # A library that is linked may change, and nothing would tell.
    return not ("undefined reference" in error.log and any(map(_LINKED.match, flags)))


def _environment(request: Request) -> str:
    """Return what a failure depends on beside the request: how the compiler is run."""
    seen = sorted(compiler_environment(request.platform.variables).items())
    return bytes_digest(repr((request.toolchain.version, seen)).encode(errors="surrogateescape"))


class Failures:
    """The failures that a store remembers."""

    def __init__(self, layout: StoreLayout) -> None:
        self._layout = layout

    def log_path(self, key: str) -> Path:
        """Return where the full log of a request's failure goes. Raises `StoreUnwritableError`."""
        return self._layout.folder(FAILED) / f"{key}.log"

    def find(self, request: Request, key: str) -> CompileError | None:
        """Return the error that this request ended in, if it would end so again."""
        try:
            kept = json.loads(read_bytes(f"{self._layout.prefix}{FAILED}/{key}.json"))
            headers = [
                Header(path, digest, as_stamp(seen) if seen else None)
                for path, digest, seen in kept["headers"]
            ]
            holds = (
                kept["environment"] == _environment(request)
                and all(map(unchanged, headers))
                and Searched.from_json(kept["searched"]).holds()
            )
            error = kept["error"]
            message = f"{operator_prefix()}{error.pop('message')}"
            return CompileError(message, **error) if holds else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(
        self, request: Request, key: str, error: CompileError, staged: Path, start_ns: int
    ) -> None:
        """Remember a lasting failure of the compile that ran in `staged` since `start_ns`."""
        if not _is_lasting(error, request.flags):
            return
        known = self._circumstances(request, error, staged, start_ns)
        if known is None:
            return
        headers, searched = known
        message = str(error).removeprefix(operator_prefix())  # another operator may ask next
        kept = {
            "environment": _environment(request), "headers": headers, "searched": searched.places,
            "error": {
                "message": message, "command": error.command, "diagnostic": error.diagnostic,
                "log": error.log, "status": error.status,
            },
        }  # fmt: skip
        try:
            path = self._layout.folder(FAILED) / f"{key}.json"
            replace_file(path, json.dumps(kept, indent=1).encode())
        except StoreUnwritableError:
            return  # it is only compiled again

    @staticmethod
    def _circumstances(
        request: Request, error: CompileError, staged: Path, start_ns: int
    ) -> tuple[list[Header], Searched] | None:
        """Return headers that a failure depends on and those that would mend it, or None."""
        try:
            paths = read_dependencies(staged)
            absent = Searched()
        except OSError:
            paths, absent = _ask_what_is_missing(request, error.command, staged)
            if not absent.places:
                return None
        try:
            if any(os.stat(path).st_ctime_ns >= start_ns for path in paths):
                return None  # what was compiled may not be what is there now
            headers = [read_header(path) for path in paths]
            source = os.path.join(staged, request.source.path or request.source.file_name)
            found = search_of_build(request, source, paths, start_ns)
        except OSError:
            return None
        if found.untracked or found.probed.is_younger_than(start_ns):
            return None
        return headers, found.searched.joined(found.probed).joined(absent)


def _ask_what_is_missing(
    request: Request, command: Sequence[str], staged: Path
) -> tuple[list[str], Searched]:
    """Return headers found and all places of missing ones: a compiler that stops lists neither."""
    if request.toolchain.family not in ("gcc", "clang"):
        return [], Searched()
    question = [part for part in command if part != "-MD"] + ["-M", "-MG", "-v"]
    try:
        answer = subprocess.run(
            question,
            cwd=staged,
            env=compiler_environment(request.platform.variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_QUESTION_SECONDS,
            check=True,
        )
        read = read_dependencies(staged)
    except (OSError, subprocess.SubprocessError):
        return [], Searched()
    found = [path for path in read if os.path.exists(path)]
    names = [os.path.relpath(path, staged) for path in read if not os.path.exists(path)]
    beside = {os.path.dirname(path) for path in found if not path.startswith("/usr/")}
    folders = {*beside, *include_directories(request.flags), *_SEARCH_LIST.findall(answer.stderr)}
    folders |= {*request.toolchain.include_directories, request.source.directory} - {""}
    return found, Searched.of(os.path.join(folder, name) for folder in folders for name in names)
