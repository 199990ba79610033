"""Stand-ins for the commands `python` and `bringup` of a shell: each runs in a fork of the server.

A command that has variables which a process reads when it starts is a real one, and so is one
that inherits no files of the shell.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from tests.forked_python import DYNAMO, ask, check, request_for, server

_SERVER = "TEST_FORK_SERVER"
_BRINGUP = "import sys\nfrom bringup.cli import main\nsys.argv[0] = 'bringup'\nsys.exit(main())"
_MODULE = (
    "import runpy, sys\ndel sys.argv[0]\n"
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


def stand_ins(folder: Path, preload: tuple[str, ...] = DYNAMO) -> tuple[dict[str, str], int]:
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
    control = _control()
    if control is None:
        os.execv(sys.executable, [sys.executable, *arguments])
    kind, *rest = arguments
    program: str | Path = Path(kind)
    if kind == "-c":
        program, *rest = rest
    elif kind == "-m":
        program = _MODULE
    request = request_for(program, rest, os.environ, Path.cwd())
    status = ask(control, request, (0, 1, 2), None)
    assert status is not None
    sys.exit(status if status >= 0 else 128 - status)


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
