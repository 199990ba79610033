"""Forks Python programs from a process that has imported torch, for `tests.forked_python`.

    python fork_server.py CONTROL MODULE...     CONTROL: the number of an open socket

It imports the modules and nothing else: no operator runs, no driver is loaded, and there is one
thread. Each program checks that, and ends like any interpreter: with its `atexit` functions,
its modules' and libraries' destructors and its exit status. Where a request asks for it, a program
ends without the destructors, which take as long as torch is large.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import types
from pathlib import Path
from typing import Any, NoReturn

# Torch's automatic loading of devices imports them, and ends there without BRINGUP_DRIVER.
BY_TORCH = {"bringup._autoload", "bringup._device_attributes", "bringup._version"}
# What a server that imports bringup's packages does not: torch's part of the native library.
USED = "bringup._native._torch"


def serve(control: socket.socket) -> dict[str, Any]:
    """Fork for every request; return it in the process that is to run it."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for the minders
    gc.freeze()  # a collection in a fork would copy all of torch's pages
    while True:
        message, files, _, _ = socket.recv_fds(control, 1, 4)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _mind(socket.socket(fileno=files[0]), files[1:])
        for file in files:
            os.close(file)


def _mind(connection: socket.socket, streams: list[int]) -> dict[str, Any]:
    """Fork the program, tell how it ends, and kill its group once nothing waits for that."""
    with connection.makefile("r", encoding="utf-8") as lines:
        request: dict[str, Any] = json.loads(lines.readline())
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        connection.close()
        _become(request, streams)
        return request
    for stream in streams:
        os.close(stream)
    ended = os.pidfd_open(child)
    ready, _, _ = select.select([ended, connection], [], [])
    if ended not in ready:
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if ended in ready:
        connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """Take over the program's streams, environment, folder, arguments and path."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv = request["argv"]
    sys.path[:] = request["path"]


def check_state(asked_for: set[str]) -> None:
    """Raise where the server has done more than to import torch and what it was asked for."""
    torch = sys.modules["torch"]
    threads = list(Path("/proc/self/task").iterdir())
    assert len(threads) == 1, f"the fork server has {len(threads)} threads"
    parts = {name for name in sys.modules if name.startswith("bringup.")}
    more = parts & {USED} if asked_for else parts - BY_TORCH
    assert not more, f"the fork server has imported {more}"
    slot = torch._C._get_privateuse1_backend_name()
    assert slot == "privateuseone", f"the fork server has a device called {slot}"


def run(request: dict[str, Any]) -> None:
    """Run the program as `__main__`."""
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    module.__builtins__ = builtins  # type: ignore[attr-defined]
    if request["file"]:
        runpy.run_path(request["file"], run_name="__main__")
    else:
        exec(compile(request["code"], "<string>", "exec"), vars(module))


def run_and_end(request: dict[str, Any]) -> NoReturn:
    """Run the program, wait for its threads, and leave all else to the system."""
    status: object = 0
    try:
        run(request)
    except SystemExit as ended:
        status = 0 if ended.code is None else ended.code
        if not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(status) & 0xFF)


if __name__ == "__main__":
    del sys.path[0]  # this file's folder
    preloaded = sys.argv[2:]
    for name in preloaded:
        importlib.import_module(name)
    asked = serve(socket.socket(fileno=int(sys.argv[1])))
    check_state({name for name in preloaded if name.startswith("bringup.")})
    if asked["ends_at_once"]:
        run_and_end(asked)
    run(asked)
