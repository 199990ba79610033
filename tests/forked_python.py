"""Runs Python programs in processes of their own that need not import torch again: each is forked
from a server that has. A program has its own folder, environment, arguments, streams and end.

Not for what a fresh interpreter is tested with: imports, automatic loading of a driver, variables
that torch or Python reads when it starts (`run_forked` refuses those).
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DYNAMO = ("torch", "torch._dynamo")
"""What a server imports for programs that compile."""

PACKAGES = (
    *DYNAMO,
    "functorch.compile",  # what the first torch.compile of a process imports
    "torch._inductor.output_code",
    *(f"bringup.{name}" for name in ("conformance", "compiler.backend", "cli._app")),
    *(name for name in ("pytest", "pydantic", "transformers") if importlib.util.find_spec(name)),
)
"""What one imports for programs that users write and commands that they type. Nothing is tested
there about imports, or about when bringup is imported first.
"""

OPINFO = ("torch", "torch.testing._internal.common_methods_invocations")
"""What one imports for programs that run torch's own samples of operators."""

ROOT = Path(__file__).parents[1]
_SERVER = Path(__file__).with_name("fork_server.py")
# Of these, what the server's process has begun with holds.
_READ_AT_THE_START = (
    *("PYTHON", "LD_", "MALLOC_", "GLIBC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_"),
    *("TORCH", "PYTORCH", "BRINGUP_DRIVER="),
)
_AT_THE_BEGINNING = {name: value for name, value in os.environ.items() if name != "BRINGUP_DRIVER"}
_READ_LATER = ("PYTHONPATH=", "TORCHINDUCTOR_CACHE_DIR=", "TORCHINDUCTOR_FX_GRAPH_CACHE=")


def run_forked(
    program: str | Path,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    timeout: float = 240,
    preload: tuple[str, ...] = ("torch",),
    ends_at_once: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run code, as `python -c` would, or a file, and return its exit status and both outputs.

    Where it `ends_at_once`, no destructors run behind its `atexit` functions.

    Raises:
        ValueError: a variable of `environment` is read when a process starts.
        subprocess.TimeoutExpired: it takes longer than `timeout` seconds. It is killed, and so are
            the processes that it has started.
    """
    variables = dict(os.environ if environment is None else environment)
    check(variables)
    request = request_for(program, arguments, variables, folder or Path.cwd(), ends_at_once)
    with (
        Path(os.devnull).open() as nothing,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        streams = nothing.fileno(), out.fileno(), err.fileno()
        status = ask(server(preload).control, request, streams, timeout)
        told = [_text(stream.fileno()) for stream in (out, err)]
    if status is None:
        raise subprocess.TimeoutExpired(request["argv"], timeout, *told)
    return subprocess.CompletedProcess(request["argv"], status, *told)


def request_for(
    program: str | Path,
    arguments: Sequence[str],
    variables: Mapping[str, str],
    folder: Path,
    ends_at_once: bool,
) -> dict[str, Any]:
    """Return what the server is asked to run."""
    is_file = isinstance(program, Path)
    return {
        "code": "" if is_file else program,
        "file": str(program) if is_file else "",
        "argv": [str(program) if is_file else "-c", *arguments],
        "environment": dict(variables),
        "ends_at_once": ends_at_once,
        "folder": str(folder),
        "path": [
            str(program.parent) if isinstance(program, Path) else "",
            *filter(None, variables.get("PYTHONPATH", "").split(os.pathsep)),
            *sys.path,
        ],
    }


def ask(
    control: socket.socket,
    request: Mapping[str, Any],
    streams: Sequence[int],
    seconds: float | None,
) -> int | None:
    """Run a request on the server of `control`; return its exit status, None if time is up."""
    connection, theirs = socket.socketpair()
    with connection:
        with theirs:
            socket.send_fds(control, [b"1"], [theirs.fileno(), *streams])
        connection.sendall(json.dumps(request).encode() + b"\n")
        connection.settimeout(seconds)
        try:
            status = connection.recv(16)
        except TimeoutError:
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(None)
            connection.recv(16)  # until the program has ended
            return None
    assert status, "the fork server has ended"
    return int(status)


def output_of(
    code: str, *arguments: str, preload: tuple[str, ...] = ("torch",), **variables: str
) -> str:
    """Return the output, stripped, of code that must end well.

    `variables` are beside those of this process; Python processes that it starts have its path.
    """
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    environment = {**os.environ, **path, **variables}
    ends = _ends_at_once(code)
    done = run_forked(code, *arguments, environment=environment, preload=preload, ends_at_once=ends)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def _ends_at_once(code: str) -> bool:
    """Return whether the program is in the three quarters that run no destructors at their ends,
    which take 0.2 s; four commits run all of them.
    """
    from tests.sweeps.support import (
        FULL,
        seed,
    )  # not of the stand-ins for commands, which are short

    return not FULL and (zlib.crc32(code.encode()) + seed()) % 4 != 0


def output_of_module(
    name: str,
    *arguments: str,
    timeout: float = 900,
    preload: tuple[str, ...] = ("torch",),
    **variables: str,
) -> str:
    """Return the same of a module that is a program, without its warnings."""
    code = (
        "import runpy, warnings; warnings.simplefilter('ignore')\n"
        f"runpy.run_module({name!r}, run_name='__main__', alter_sys=True)"
    )
    done = run_forked(
        code,
        *arguments,
        environment={**os.environ, **variables},
        folder=ROOT,
        timeout=timeout,
        preload=preload,
        ends_at_once=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout.strip()


def output_of_start(code: str, *arguments: str, **variables: str) -> str:
    """Do the same in a fresh interpreter, for what is tested with one."""
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **path, **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


class Server:
    """A process that forks: where it is asked to, and itself."""

    def __init__(self, preload: tuple[str, ...]) -> None:
        self.control, theirs = socket.socketpair()
        path = {"PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, str(_SERVER), str(theirs.fileno()), *preload],
                env=_AT_THE_BEGINNING | path,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # what a terminal's Ctrl-C ends is not the server
            )


def check(variables: Mapping[str, str], begun_with: Mapping[str, str] = _AT_THE_BEGINNING) -> None:
    """Raise ValueError for a variable that would be read too late by a server that has others."""
    for name, value in variables.items():
        entry, had = f"{name}=", begun_with.get(name)
        late = entry.startswith(_READ_AT_THE_START) and not entry.startswith(_READ_LATER)
        if late and value != had:
            words = f"{name} is read when a process starts or imports torch"
            raise ValueError(
                f"{words}: {had!r} in the fork server, {value!r} here; start a process"
            )


@functools.cache
def server(preload: tuple[str, ...]) -> Server:
    """Return this process's server that has imported these modules."""
    return Server(preload)


def _text(file: int) -> str:
    with os.fdopen(os.dup(file), encoding="utf-8", errors="replace") as stream:
        stream.seek(0)
        return stream.read()
