"""Trying a model: fused, captured, timed, compared. What fails becomes a reason, not an error."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from bringup import compiler, graphs
from bringup.cli.trial.results import compared, flat
from bringup.cli.trial.subject import Subject
from bringup.passes import Report

__all__ = ["Line", "Trial", "try_subject"]

_ROUNDS = 15
_WARM_UPS = 3


@dataclass(frozen=True)
class Line:
    """One way of running the model.

    Attributes:
        mode: eager, inductor, fused or captured.
        ms: median time of a call; None when it does not work.
        speedup: against eager.
        speedup_vs_inductor: against Inductor; None when that did not run.
        max_abs_diff: against eager, over all tensors in the output; None when there is none.
        reason: why it does not work, or why its output does not compare; "" when all is well.
    """

    mode: str
    ms: float | None = None
    speedup: float | None = None
    speedup_vs_inductor: float | None = None
    max_abs_diff: float | None = None
    reason: str = ""


@dataclass
class Trial:
    """What came out of trying a model.

    Attributes:
        name: what was tried.
        lines: the ways of running it.
        reports: what the passes did, one report per graph that Dynamo found.
        slots: the arguments of the captured graph that can be updated.
        notes: what a reader should know.
    """

    name: str
    lines: list[Line] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    slots: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def try_subject(subject: Subject, *, inductor: bool, on_step: Callable[[str], None]) -> Trial:
    """Run the model in every way there is. Raises what the model itself raises in eager mode."""
    trial = Trial(subject.name, notes=list(subject.notes))
    with torch.no_grad():
        on_step("running it in eager mode")
        expected = flat(_call(subject.model, subject))
        works: dict[str, Callable[[], Any]] = {"eager": lambda: _call(subject.model, subject)}
        failures: dict[str, str] = {}

        on_step('fusing it: torch.compile(model, backend="bringup")')
        reports: list[Report] = []
        compiled = _compiled(subject, reports)
        _attempt("fused", lambda: _warmed(lambda: _call(compiled, subject)), works, failures)
        trial.reports = list(reports)  # a capture compiles once more and would report it again
        if not reports and not failures:
            trial.notes.append("Dynamo found no graph in this model: fused is eager here.")
        on_step("capturing it as a graph")
        whole = compiled if "fused" in works else subject.model
        _attempt("captured", lambda: _captured(whole, subject, trial), works, failures)
        if inductor:
            on_step("compiling it with Inductor, the peer")
            peer = torch.compile(subject.model)
            _attempt("inductor", lambda: _warmed(lambda: _call(peer, subject)), works, failures)

        on_step("timing")
        times = _interleaved(works)
        peer_ms = times.get("inductor")
        for mode, call in works.items():
            gap, reason = compared(flat(call()), expected)
            trial.lines.append(
                Line(
                    mode,
                    ms=times[mode],
                    speedup=times["eager"] / times[mode],
                    speedup_vs_inductor=None if peer_ms is None else peer_ms / times[mode],
                    max_abs_diff=gap,
                    reason=reason,
                )
            )
    trial.lines.extend(Line(mode, reason=reason) for mode, reason in failures.items())
    return trial


def _call(model: Any, subject: Subject) -> Any:
    return model(*subject.args, **subject.kwargs)


def _attempt(
    mode: str,
    make: Callable[[], Callable[[], Any]],
    works: dict[str, Callable[[], Any]],
    failures: dict[str, str],
) -> None:
    """Whatever a foreign model, compiler or capture raises is the answer to "why not"."""
    try:
        works[mode] = make()
    except Exception as error:
        failures[mode] = f"{type(error).__name__}: {_first_paragraph(str(error))}"


def _first_paragraph(text: str) -> str:
    return text.strip().split("\n\n")[0]


def _compiled(subject: Subject, reports: list[Report]) -> Any:
    """The model through our backend, what the passes did collected in `reports`."""

    def backend(module: Any, inputs: Sequence[Any]) -> Any:
        run = compiler.dynamo_backend(module, inputs, options={"freeze": True})
        report = compiler.last_report()
        if report is not None:
            reports.append(report)
        return run

    return torch.compile(subject.model, backend=backend)


def _warmed(call: Callable[[], Any]) -> Callable[[], Any]:
    call()
    return call


def _captured(model: Any, subject: Subject, trial: Trial) -> Callable[[], Any]:
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        result = _call(model, subject)
    trial.slots = [str(slot) for slot in graph.slots]

    def replay() -> Any:
        graph.replay()
        return result

    return _warmed(replay)


def _interleaved(works: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median milliseconds of each; all take turns in every round."""
    for call in works.values():
        for _ in range(_WARM_UPS):
            call()
    samples: dict[str, list[float]] = {mode: [] for mode in works}
    gc.collect()
    for _ in range(_ROUNDS):
        for mode, call in works.items():
            start = time.perf_counter_ns()
            call()
            samples[mode].append((time.perf_counter_ns() - start) / 1e6)
    return {mode: statistics.median(times) for mode, times in samples.items()}
