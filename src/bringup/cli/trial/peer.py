"""Inductor under a time limit. It compiles in a process of its own first, which can be stopped with
the compilers that it started; what that leaves in Inductor's cache makes the second compile, in the
process that measures, a short one.

`python -m bringup.cli.trial.peer TARGET THREADS` is that process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from typing import Any

import torch

from bringup._processes import ending, output_within, started
from bringup.cli.trial.subject import Subject, load_subject

__all__ = ["PeerError", "compile_within", "compiled_peer"]

_OPTIONS = {"freezing": True}


class PeerError(RuntimeError):
    """Inductor gave up, or was given up."""


def compiled_peer(subject: Subject, **settings: Any) -> Callable[[], Any]:
    """The model through Inductor with freezing, at its best for inference: its call, compiled.

    Args:
        subject: the model and its inputs.
        settings: of Inductor, while it compiles.
    """
    from torch._inductor import config

    compiled = torch.compile(subject.model, options=dict(_OPTIONS))

    def call() -> Any:
        return compiled(*subject.args, **subject.kwargs)

    with config.patch(**settings, **_OPTIONS):  # Dynamo looks at the global option for freezing
        call()
    return call


def compile_within(seconds: float, target: str, *, command: Sequence[str] | None = None) -> None:
    """Let Inductor compile what `target` names in another process.

    Args:
        seconds: how long it may take; loading torch and the model count.
        target: as for `load_subject`.
        command: what to run instead.

    Raises `PeerError` with Inductor's own error, or when the time was not enough; then that
    process and all that it started are ended.
    """
    threads = str(torch.get_num_threads())
    argv = command or (sys.executable, "-m", "bringup.cli.trial.peer", target, threads)
    with started(argv, errors=subprocess.DEVNULL) as child:
        answer, in_time = output_within(child, seconds)
    if not in_time:
        raise PeerError(
            f"given up: Inductor had not compiled it after {seconds:g} s (--inductor-seconds gives "
            "it more)"
        )
    if child.returncode != 0:
        raise PeerError(f"Inductor's process ended with {ending(child.returncode)}")
    if error := json.loads(answer)["error"]:
        raise PeerError(error)


def main(target: str, threads: int) -> None:
    """Compile; one line of JSON says how it went."""
    torch.set_num_threads(threads)
    error = ""
    with redirect_stdout(sys.stderr), torch.no_grad():
        try:
            compiled_peer(load_subject(target))
        except Exception as caught:
            error = f"{type(caught).__name__}: {str(caught).strip()}"
    print(json.dumps({"error": error}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
