"""Trying a model in the backend's modes and through Inductor: what fails becomes a reason."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from bringup import compiler
from bringup._differences import Leaf, largest_gap, leaves, magnitude
from bringup.cli.trial.inductor import InductorError, compile_frozen, compile_within
from bringup.cli.trial.messages import GraphBreak, Prints, graph_breaks, logged_warnings
from bringup.cli.trial.model_state import State
from bringup.cli.trial.timing import Limits, Rounds, waiting, warmed
from bringup.cli.trial.trial_model import Subject
from bringup.compiler.options import MODES
from bringup.passes import PassReport
from bringup.report import Ratio

_MOST_NAMED = 4
_WARM_SECONDS = 2.0  # at most, until eager takes the same time twice
_COMPILE_SECONDS = 5  # of a small model in one mode
_FLOAT32, _NARROW = 1e-3, 2e-2  # tolerances, relative to the largest value


@dataclass(frozen=True)
class TrialOptions:
    """What is tried, and for how long: `limits` end the timing of a mode."""

    inductor: bool = True
    inductor_seconds: float = 120.0
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Line:
    """A way of running the model.

    Attributes:
        ms: median time of a call; None when it does not work or was not timed.
        speedup: eager's time over this, in the same rounds.
        max_abs_diff: over all tensors and numbers of the output; None without any.
        reason: why it does not work or compare; "" when all is well.
    """

    mode: str
    ms: float | None = None
    speedup: Ratio | None = None
    speedup_vs_inductor: Ratio | None = None
    max_abs_diff: float | None = None
    reason: str = ""


@dataclass
class Trial:
    """What came out of trying a model; weights of mode max may be rounded (`narrow_tolerance`)."""

    name: str
    threads: int
    lines: list[Line] = field(default_factory=list)
    tolerance: float = 0.0
    narrow_tolerance: float = 0.0
    reports: list[PassReport] = field(default_factory=list)
    breaks: list[GraphBreak] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_interrupted: bool = False

    def tolerance_of(self, mode: str) -> float:
        """Return the absolute difference up to which outputs of this mode agree with eager's."""
        return self.narrow_tolerance if mode == "max" else self.tolerance


def try_subject(
    subject: Subject,
    options: TrialOptions,
    *,
    on_step: Callable[[str], None],
    on_line: Callable[[Line], None],
) -> Trial:
    """Run the model in every way, said at once; Ctrl-C ends it. Raises eager mode's errors."""
    trial = Trial(subject.name, torch.get_num_threads(), notes=list(subject.notes))
    trying = _Trying(subject, options, trial, on_step, on_line)
    try:
        with torch.no_grad():
            trying.run()
    except KeyboardInterrupt:
        trial.is_interrupted = True
    trial.lines = trying.lines()
    return trial


@dataclass
class _Trying:
    subject: Subject
    options: TrialOptions
    trial: Trial
    on_step: Callable[[str], None]
    on_line: Callable[[Line], None]

    def __post_init__(self) -> None:
        self._prints = Prints()
        self._works: dict[str, Callable[[], Any]] = {}
        self._rounds: Rounds[str] = Rounds()
        self._compared: dict[str, tuple[float | None, str]] = {}
        self._failures: dict[str, str] = {}
        self._is_stateful = False
        subject = self.subject
        self._on_device = any(
            item.device.type != "cpu"
            for item in (*subject.model.parameters(), *_tensors(subject.args, subject.kwargs))
        )

    def run(self) -> None:
        self.on_step("running it in eager mode")
        self._eager()
        for mode in MODES:
            self.on_step(f'compiling it: torch.compile(model, backend="bringup", mode="{mode}")')
            self._try(mode, functools.partial(self._compiled, mode), tuple(self._works))
        if self.options.inductor:
            seconds = self.options.inductor_seconds
            self.on_step(
                f"compiling it with Inductor (freezing), the peer, in at most {seconds:g} s"
            )
            self._try("inductor", self._inductor, tuple(self._works))

    def lines(self) -> list[Line]:
        modes = (*self._compared, *(mode for mode in self._failures if mode not in self._compared))
        return [self._line(mode) for mode in modes]

    def _line(self, mode: str) -> Line:
        gap, reason = self._compared.get(mode, (None, ""))
        reason = self._failures.get(mode, reason)
        rounds = self._rounds
        if not rounds.has(mode):
            return Line(mode, max_abs_diff=gap, reason=reason)
        with_peer = rounds.has("inductor", mode)
        return Line(
            mode,
            ms=rounds.milliseconds(mode),
            speedup=rounds.ratio("eager", mode),
            speedup_vs_inductor=rounds.ratio("inductor", mode) if with_peer else None,
            max_abs_diff=gap,
            reason=reason,
        )

    def _eager(self) -> None:
        """Run it twice, as later calls find what the first call leaves behind."""
        subject, trial = self.subject, self.trial
        self._state = State(model=subject.model, args=subject.args, kwargs=subject.kwargs)
        self._works["eager"] = lambda: subject.model(*subject.args, **subject.kwargs)
        with self._prints.aside():
            self._expected = leaves(self._works["eager"]())
        self._prints.silent = True
        changed = self._state.changes()
        self._is_stateful = bool(changed)
        if changed:
            named = ", ".join(changed[:_MOST_NAMED]) + (" ..." if changed[_MOST_NAMED:] else "")
            trial.notes.append(f"A call changes {named}: put back before every call.")
        if lasting := self._state.lasting:
            trial.notes.append(f"Not put back, because they are parameters: {', '.join(lasting)}.")
        gap, reason = self._compare("eager")
        trial.tolerance = max(_tolerance(self._expected), gap or 0.0)
        trial.narrow_tolerance = max(_NARROW * _scale_of(self._expected), trial.tolerance)
        if reason or gap:
            trial.notes.append(
                "Two calls in eager mode on the same inputs differ "
                f"({reason or f'by {gap:.1e}'}): differences below say little."
            )
        with self._prints.aside():
            milliseconds = warmed(
                self._timed("eager"),
                before=self._before(),
                seconds=min(_WARM_SECONDS, self.options.limits.seconds),
            )
        self.on_step(_estimate(milliseconds, self.options))
        self._time("eager", ())

    def _compare(self, mode: str) -> tuple[float | None, str]:
        """Call it from the first state, and remember how far its output is from the first one."""
        self._state.restore()
        with self._prints.aside():
            ours = leaves(self._works[mode]())
        self._compared[mode] = largest_gap(ours, self._expected)
        return self._compared[mode]

    def _try(
        self, mode: str, make: Callable[[], Callable[[], Any]], against: Sequence[str]
    ) -> None:
        """Return the error of a foreign model, compiler or capture as the answer to "why not"."""
        try:
            self._state.restore()
            with self._prints.aside():
                self._works[mode] = make()
            self._compare(mode)
        except InductorError as error:
            self._fail(mode, str(error))
        except Exception as error:
            self._fail(mode, f"{type(error).__name__}: {error}")
        else:
            self._time(mode, against)

    def _fail(self, mode: str, reason: str) -> None:
        self._works.pop(mode, None)
        self._failures[mode] = reason.strip().split("\n\n")[0]
        self.on_line(self._line(mode))

    def _time(self, mode: str, against: Sequence[str]) -> None:
        self.on_step(f"timing {mode}")
        calls = {name: self._timed(name) for name in (*against, mode)}
        try:
            with self._prints.aside():
                self._rounds.take(
                    calls, baseline="eager", before=self._before(), limits=self.options.limits
                )
        finally:
            if self._rounds.has(mode):
                self.on_line(self._line(mode))

    def _timed(self, mode: str) -> Callable[[], object]:
        return waiting(self._works[mode], self._on_device)

    def _before(self) -> Callable[[], None] | None:
        return self._state.restore if self._is_stateful else None

    def _compiled(self, mode: str) -> Callable[[], Any]:
        subject, trial = self.subject, self.trial
        reports: list[PassReport] = []
        compiled = _compiled(subject, mode, reports)
        with graph_breaks() as breaks, logged_warnings("bringup.compiler") as said:
            compiled(*subject.args, **subject.kwargs)
        trial.notes.extend(f"{mode}: {words}" for words in said)
        if mode == MODES[0]:
            trial.breaks, trial.reports = breaks, reports
            if not reports:
                trial.notes.append("Dynamo found no graph in this model: every mode is eager here.")
        return lambda: compiled(*subject.args, **subject.kwargs)

    def _inductor(self) -> Callable[[], Any]:
        compile_within(self.options.inductor_seconds, self.subject.name)
        # workers of its own would still be starting up while others are timed
        subject = self.subject
        calls = [(subject.args, subject.kwargs)]
        compiled = compile_frozen(subject.model, calls, compile_threads=1)
        return lambda: compiled(*subject.args, **subject.kwargs)


def _estimate(milliseconds: float, options: TrialOptions) -> str:
    limits, modes = options.limits, len(MODES) + options.inductor
    calls = limits.fewest * modes * (modes + 3) / 2
    timing = min(calls * max(milliseconds, 1.0) / 1e3, limits.seconds * (modes + 1))
    most = limits.seconds * (modes + 1) + options.inductor_seconds * options.inductor
    inductor = ", and Inductor (--no-inductor leaves it out)" if options.inductor else ""
    return (
        f"it will take about {timing + modes * _COMPILE_SECONDS:.0f} s, on a busy machine up to "
        f"{most + modes * _COMPILE_SECONDS:.0f} s: {len(MODES)} modes are compiled and timed"
        f"{inductor}"
    )


def _tensors(*nests: Any) -> list[torch.Tensor]:
    return [item for item in pytree.tree_leaves(nests) if isinstance(item, torch.Tensor)]


def _tolerance(values: Sequence[Leaf]) -> float:
    """Return the absolute tolerance of outputs, from the largest value and the dtypes."""
    dtypes = {leaf.value.dtype for leaf in values if isinstance(leaf.value, torch.Tensor)}
    coarse = any(dtype.is_floating_point and dtype.itemsize < 4 for dtype in dtypes)
    return (_NARROW if coarse else _FLOAT32) * _scale_of(values)


def _scale_of(values: Sequence[Leaf]) -> float:
    return max([1.0, *(magnitude(leaf.value) for leaf in values)])


def _compiled(subject: Subject, mode: str, reports: list[PassReport]) -> Any:
    """Return the model through our backend, what the passes did collected in `reports`."""

    def backend(module: Any, inputs: Sequence[Any]) -> Any:
        run = compiler.dynamo_backend(module, inputs, mode=mode)
        report = compiler.last_report()
        if report is not None:
            reports.append(report)
        return run

    return torch.compile(subject.model, backend=backend)
