"""Runs Python programs in processes of their own that need not import torch again: each is forked
from a server that has. A program has its own folder, environment, arguments and output.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch._dynamo", "bringup"])


def run_forked(
    program: Path, environment: Mapping[str, str], *, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Runs it in its own folder. Output is that of both streams, in order, as `stdout`.

    Raises:
        subprocess.TimeoutExpired: it takes longer than `timeout` seconds. It is killed.
    """
    output = program.with_suffix(".out")
    process = _CONTEXT.Process(target=_run, args=(program, dict(environment), output))
    process.start()
    process.join(timeout)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise subprocess.TimeoutExpired([str(program)], timeout, output.read_text())
    return subprocess.CompletedProcess([str(program)], process.exitcode, output.read_text(), "")


def _run(program: Path, environment: dict[str, str], output: Path) -> None:
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(program.parent)
    sys.argv = [program.name]
    sys.path.insert(0, str(program.parent))
    try:
        runpy.run_path(program.name, run_name="__main__")
        atexit._run_exitfuncs()
    finally:
        sys.stdout.flush()
