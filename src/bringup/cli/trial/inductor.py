"""Inductor under a time limit: it compiles in a process that can be stopped, and then from its
cache.

`python -m bringup.cli.trial.inductor TARGET THREADS FROZEN DYNAMIC` is that process, with 1 or 0.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

import torch

from bringup._processes import ending, output_within, started
from bringup.cli.trial.trial_model import load_subject

_OPTIONS = {"freezing": True}


class InductorError(RuntimeError):
    """Inductor gave up, or was given up."""


def compile_frozen(
    model: torch.nn.Module,
    calls: Iterable[tuple[Sequence[Any], Mapping[str, Any]]],
    *,
    dynamic: bool | None = None,
    **settings: Any,
) -> Callable[..., Any]:
    """Return the model through Inductor with freezing, compiled here: Dynamo looks at the global
    option, and would take an artifact without it for the same. `settings`: Inductor's, for now.
    """
    from torch._inductor import config

    compiled: Callable[..., Any] = torch.compile(model, dynamic=dynamic, options=dict(_OPTIONS))
    with config.patch(**settings, **_OPTIONS), torch.no_grad():
        for args, kwargs in calls:
            compiled(*args, **kwargs)
    return compiled


def compile_within(
    seconds: float,
    target: str,
    *,
    frozen: bool = True,
    dynamic: bool = False,
    command: Sequence[str] | None = None,
    hint: str = " (--inductor-seconds gives it more)",
) -> None:
    """Let Inductor compile what `target` names in another process, for so many `seconds` in all.
    Raises `InductorError` with its error or `hint`; the process and its children are ended.
    """
    threads = str(torch.get_num_threads())
    flags = (str(int(frozen)), str(int(dynamic)))
    module = ("-m", "bringup.cli.trial.inductor")
    argv = command or (sys.executable, *module, target, threads, *flags)
    with started(argv, errors=subprocess.DEVNULL) as child:
        answer, in_time = output_within(child, seconds)
    if not in_time:
        raise InductorError(f"given up: Inductor had not compiled it after {seconds:g} s{hint}")
    if child.returncode != 0:
        raise InductorError(f"Inductor's process ended with {ending(child.returncode)}")
    if error := json.loads(answer)["error"]:
        raise InductorError(error)


def main(target: str, threads: int, frozen: int, dynamic: int) -> None:
    """Compile; one line of JSON says how it went."""
    torch.set_num_threads(threads)
    error = ""
    with redirect_stdout(sys.stderr), torch.no_grad():
        try:
            subject = load_subject(target)
            if frozen:
                calls = [(subject.args, subject.kwargs)]
                compile_frozen(subject.model, calls, dynamic=bool(dynamic) or None)
            else:
                compiled = torch.compile(subject.model, dynamic=bool(dynamic) or None)
                compiled(*subject.args, **subject.kwargs)
        except Exception as caught:
            error = f"{type(caught).__name__}: {str(caught).strip()}"
    print(json.dumps({"error": error}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
