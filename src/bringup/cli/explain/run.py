"""Explaining passes on a model, and finding the rewrite that makes its result wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bringup import passes
from bringup.cli.explain.model import Model
from bringup.cli.explain.rewritten import Rewritten
from bringup.cli.trial.results import Leaf, compared, scale_of
from bringup.passes import PassReport, PassResult, PassStatus

__all__ = ["Bisection", "Explanation", "bisect", "explain"]


@dataclass
class Explanation:
    """What passes did to a model.

    Attributes:
        model: its name.
        reports: one for each graph that was found in it.
        error: why a pass failed or the result could not be run; "" when all is well.
    """

    model: str
    reports: list[PassReport] = field(default_factory=list)
    error: str = ""

    @property
    def results(self) -> list[PassResult]:
        """All passes on all graphs."""
        return [result for report in self.reports for result in report.results]

    @property
    def unmatched(self) -> list[str]:
        """The passes that rewrote nothing anywhere, in running order."""
        totals: dict[str, int] = {}
        for result in self.results:
            totals[result.name] = totals.get(result.name, 0) + result.matches
        return [name for name, matches in totals.items() if not matches]

    def has_rewritten(self, *, every: bool) -> bool:
        """Whether passes rewrote something: one of them, or every one of them."""
        if every:
            return bool(self.results) and not self.unmatched
        return any(result.matches for result in self.results)

    @property
    def has_failed(self) -> bool:
        """Whether a pass failed, or what it made cannot be run."""
        failed = any(result.status is PassStatus.FAILED for result in self.results)
        return bool(self.error) or failed


def explain(
    model: Model, names: Sequence[str] | None, options: Mapping[str, object]
) -> Explanation:
    """Run passes over a model. Raises what the model itself raises in eager mode."""
    model.check()
    done = model.rewritten(names, options)
    error = "" if done.error is None else f"{type(done.error).__name__}: {done.error}"
    return Explanation(model.name, done.reports, error)


@dataclass(frozen=True)
class Bisection:
    """Which rewrite made a result wrong.

    Attributes:
        model: its name.
        rewrites: how many there are.
        first_bad: the number of the first one with which the result is wrong, from 1; None when it
            is right with all of them, 0 when it is wrong without any.
        rewrite: pass, graph and nodes of that rewrite.
        reason: how the result is wrong there.
        runs: how often the model was compiled.
    """

    model: str
    rewrites: int
    first_bad: int | None
    rewrite: str = ""
    reason: str = ""
    runs: int = 0


def bisect(
    model: Model,
    names: Sequence[str] | None,
    *,
    tolerance: float,
    on_step: Callable[[str], None],
) -> Bisection:
    """Find the first rewrite with which the model's result differs from eager's.

    Args:
        model: compiled again for every try.
        names: of passes; None for all.
        tolerance: how far results may be apart, relative to the largest value (at least 1).
        on_step: told what is tried.
    """
    search = _Search(model, names, model.expected(), tolerance, on_step)
    total, reason = search.wrong_with(None)
    if not reason:
        return Bisection(model.name, total, None, runs=search.runs)
    _, without = search.wrong_with(0)
    if without:
        return Bisection(model.name, total, 0, reason=without, runs=search.runs)
    good, bad = 0, total
    while bad - good > 1:
        middle = (good + bad) // 2
        _, found = search.wrong_with(middle)
        good, bad = (good, middle) if found else (middle, bad)
        reason = found or reason
    _, reason = search.wrong_with(bad)
    return Bisection(model.name, total, bad, search.last, reason, search.runs)


class _Search:
    def __init__(
        self,
        model: Model,
        names: Sequence[str] | None,
        expected: list[Leaf],
        tolerance: float,
        on_step: Callable[[str], None],
    ) -> None:
        self._model = model
        self._names = names
        self._expected = expected
        self._tolerance = tolerance
        self._on_step = on_step
        self.runs = 0
        self.last = ""

    def wrong_with(self, most: int | None) -> tuple[int, str]:
        """How many rewrites happened with this limit, and how the result is wrong, or ""."""
        self.runs += 1
        with passes.limit_rewrites(most) as limit:
            done = self._model.rewritten(self._names, {})
        self.last = limit.log[-1] if limit.log else ""
        reason = self._judge(done)
        words = "all rewrites" if most is None else f"{most} rewrites"
        self._on_step(f"{words}: {reason or 'right'}")
        return len(limit.log), reason

    def _judge(self, done: Rewritten) -> str:
        if done.error is not None:
            text = str(done.error).strip().partition("\n")[0]
            return f"{type(done.error).__name__}: {text}"
        gap, reason = compared(done.outputs or [], self._expected)
        if reason or gap is None:
            return reason
        return (
            ""
            if gap <= self._tolerance * scale_of(self._expected)
            else f"the outputs differ by {gap:.3g}"
        )
