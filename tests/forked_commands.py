"""Stand-ins for the commands `python` and `bringup` of a shell: each runs in a fork of the server.

A command that has variables which a process reads when it starts is a real one, and so is one
that inherits no files of the shell, and one that says `-c` and neither torch nor bringup.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.forked_python import PACKAGES, ask, check, request_for, server

ENDS_AT_ONCE = "TEST_FORK_ENDS_AT_ONCE"
"""The variable of shells whose Python commands run no destructors at their ends."""

_SERVER = "TEST_FORK_SERVER"
_BRINGUP = "import sys\nfrom bringup.cli import main\nsys.argv[0] = 'bringup'\nsys.exit(main())"
_MODULE = (
    "import runpy, sys\ndel sys.argv[0]\n"
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


def stand_ins(folder: Path, preload: tuple[str, ...] = PACKAGES) -> tuple[dict[str, str], int]:
    """Write the commands; return variables and a file for the shell that shall find them."""
    for name in ("python", "bringup"):
        file = folder / name
        file.write_text(
            f"#!{sys.executable} -IS\nimport sys\nsys.path[:] = {sys.path!r}\n"
            f"from tests.forked_commands import run\nrun({name!r}, sys.argv[1:])\n"
        )
        file.chmod(0o755)
    begun = server(preload)
    number = begun.control.fileno()
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    inode = os.fstat(number).st_ino
    return {"PATH": path, _SERVER: f"{number} {inode} {begun.process.pid}"}, number


def run(name: str, arguments: list[str]) -> None:
    """Do what the command does, and end as it ends."""
    if name == "bringup":
        arguments = ["-c", _BRINGUP, *arguments]
    control = _control() if _is_large(arguments) else None
    if control is None:
        os.execv(sys.executable, [sys.executable, *arguments])
    program, rest = program_of(arguments)
    request = request_for(program, rest, os.environ, Path.cwd(), ENDS_AT_ONCE in os.environ)
    status = ask(control, request, (0, 1, 2), None)
    assert status is not None
    sys.exit(status if status >= 0 else 128 - status)


def program_of(arguments: Sequence[str]) -> tuple[str | Path, Sequence[str]]:
    """Return what Python is to run, and the program's arguments, of `-c CODE`, `-m NAME` or FILE
    and what comes behind it.
    """
    kind, *rest = arguments
    if kind == "-c":
        return rest[0], rest[1:]
    return (_MODULE if kind == "-m" else Path(kind)), rest


def _is_large(arguments: list[str]) -> bool:
    """Whether a fork saves time: CMake asks Python eight short questions about itself."""
    if arguments[:1] == ["-c"]:
        return "torch" in arguments[1] or "bringup" in arguments[1]
    return bool(arguments) and (arguments[0] == "-m" or not arguments[0].startswith("-"))


def _control() -> socket.socket | None:
    """Return the server's socket, None where a fork cannot have what this process has."""
    number, inode, process = map(int, os.environ[_SERVER].split())
    entries = Path(f"/proc/{process}/environ").read_text().split("\0")
    try:
        check(os.environ, dict(entry.split("=", 1) for entry in entries if entry))
        is_open = os.fstat(number).st_ino == inode
    except (ValueError, OSError):
        return None
    return socket.socket(fileno=number) if is_open else None
