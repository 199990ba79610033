"""What passes do to a model, and its rewrites one by one for the search for a wrong one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bringup import passes
from bringup.cli.explain.model import Model
from bringup.cli.explain.reports import OperatorWatch
from bringup.compiler.bisection import PASSES, Attempt, difference, failed_pass, reason_of
from bringup.passes import PassReport, PassResult, PassStatus


@dataclass
class Explanation:
    """What passes did to a model. `taken` names the pass that removed an operator before."""

    model: str
    reports: list[PassReport] = field(default_factory=list)
    error: str = ""
    taken: dict[int, dict[str, str]] = field(default_factory=dict)

    @property
    def results(self) -> list[PassResult]:
        return [result for report in self.reports for result in report.results]

    @property
    def unmatched(self) -> list[str]:
        """Return the passes that rewrote nothing anywhere, in running order."""
        totals: dict[str, int] = {}
        for result in self.results:
            totals[result.name] = totals.get(result.name, 0) + result.matches
        return [name for name, matches in totals.items() if not matches]

    def has_rewritten(self, *, every: bool) -> bool:
        """Return whether passes rewrote something: one of them, or every one of them."""
        if every:
            return bool(self.results) and not self.unmatched
        return any(result.matches for result in self.results)

    @property
    def has_failed(self) -> bool:
        """Return whether a pass failed, or what it made cannot be run."""
        failed = any(result.status is PassStatus.FAILED for result in self.results)
        return bool(self.error) or failed


def explain(
    model: Model, names: Sequence[str] | None, options: Mapping[str, object]
) -> Explanation:
    """Run passes over a model. Raises what the model itself raises in eager mode."""
    model.check()
    watch = OperatorWatch()
    with passes.subscribe(watch):
        done = model.rewritten(names, options)
    error = "" if done.error is None else f"{type(done.error).__name__}: {done.error}"
    return Explanation(model.name, done.reports, error, watch.taken)


class RewritesOf:
    """The rewrites of a program or file, not for torch.compile, for `bisection.search`."""

    parts: Sequence[str] = (PASSES,)

    def __init__(
        self, model: Model, names: Sequence[str] | None, tolerance: tuple[float, float] | None
    ) -> None:
        self._model = model
        self._names = names
        self._tolerance = tolerance
        self._expected = model.expected()

    def attempt(self, parts: Sequence[str], most: int | None, without: Iterable[str]) -> Attempt:
        switch = dict.fromkeys(without, False)
        with passes.limit_rewrites(most) as limit:
            done = self._model.rewritten(
                self._names if parts else [], {"pass_switch": switch} if switch else {}
            )
        if done.error is not None:
            return Attempt(reason_of(done.error), limit.rewrites, failed=failed_pass(done.error))
        found = difference(done.outputs or [], self._expected, self._tolerance)
        return Attempt(found, limit.rewrites)
