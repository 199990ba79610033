"""25 architectures of transformers in mode "serve": `python -m benchmarks.zoo`.

Random weights, published hidden sizes, at most six layers; batch 1 and 8, 16 and 64 tokens, with a
mask. Beside eager stands Inductor with freezing. Every architecture has a process of its own, in
which all forms take turns with the same threads. Equal is what `torch.testing.assert_close` takes
with its defaults: the results that were timed, and those of the checks.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks._architectures import ARCHITECTURES
from benchmarks._harness import Row, interleave
from benchmarks._modes import compiled, first_results
from benchmarks._zoo_checks import CHECKS, check
from bringup import compiler, report

SHAPES = ((1, 16), (1, 64), (8, 16), (8, 64))
FASTER, SLOWER, ENOUGH = 1.15, 0.95, 18
"""The budget: so many architectures faster by so much, none slower than that, all equal."""
_SECONDS = 3.0
_LIMIT = 1800
_CLEANUP = ("CollapseViews", "DropCopies", "FoldFactories", "MergeEqual")


@dataclass
class Figures:
    """What was measured of one architecture.

    Attributes:
        times: by form (`eager`, `serve`, `inductor`), a median in seconds for each shape.
        eager: eager's time over ours, for each shape: the median over rounds.
        inductor: Inductor's over ours.
        matches: what passes found, without those that clean up.
        unequal: results that are not eager's.
        refusals: what the backend and Dynamo had to say.
        failure: why there are no figures.
    """

    name: str
    times: dict[str, list[float]] = field(default_factory=dict)
    eager: list[float] = field(default_factory=list)
    inductor: list[float] = field(default_factory=list)
    matches: dict[str, int] = field(default_factory=dict)
    checked: int = 0
    unequal: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    failure: str = ""

    @property
    def speedup(self) -> float:
        """The geometric mean over the shapes against eager."""
        return statistics.geometric_mean(self.eager) if self.eager else float("nan")

    @property
    def is_equal(self) -> bool:
        """Whether everything was compared and equal."""
        return not self.failure and not self.unequal


class _Refusals(logging.Handler):
    """Keeps what the backend warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.found[record.getMessage()] = None


@torch.no_grad()
def measure(name: str, *, with_inductor: bool, with_checks: bool, timed: bool = True) -> Figures:
    """One architecture, in this process."""
    figures = Figures(name)
    refusals = _Refusals()
    logging.getLogger("bringup").addHandler(refusals)
    torch._dynamo.utils.counters.clear()
    for batch, length in SHAPES:
        _measure_shape(figures, batch, length, with_inductor, timed)
    if with_checks:
        _check(figures)
    breaks = torch._dynamo.utils.counters["graph_break"]
    figures.refusals = [*refusals.found, *(f"graph break: {reason}" for reason in breaks)]
    return figures


def _measure_shape(
    figures: Figures, batch: int, length: int, with_inductor: bool, timed: bool
) -> None:
    architecture = ARCHITECTURES[figures.name]
    size = dataclasses.replace(architecture.published, batch=batch, length=length)
    torch._dynamo.reset()
    model = architecture.build(size).requires_grad_(False)
    inputs = architecture.inputs(size)

    def call(function: Callable[..., Any]) -> Tensor:
        state: Tensor = function(**inputs).last_hidden_state
        return state

    forms = {"eager": model, "serve": compiled(model, "serve")}
    if with_inductor:
        forms["inductor"] = compiled(model, "inductor")
    calls = {form: partial(call, function) for form, function in forms.items()}
    results = first_results(calls)
    if (found := compiler.last_report()) is not None:
        names = {name.removeprefix("Library"): count for name, count in found.matches.items()}
        figures.matches = {k: n for k, n in names.items() if n and k not in _CLEANUP}
    figures.checked += 1
    try:
        torch.testing.assert_close(results["serve"], results["eager"])
    except AssertionError as error:
        figures.unequal.append(f"{batch} x {length}: {error}")
    if timed:
        _time(figures, calls)


def _time(figures: Figures, calls: Mapping[str, Callable[[], object]]) -> None:
    began = time.perf_counter()
    calls["eager"]()
    spent = time.perf_counter() - began
    rounds = min(max(int(_SECONDS / spent / len(calls)), 7), 51)
    samples = interleave(calls, rounds=rounds, calls=1)
    for form, values in samples.items():
        figures.times.setdefault(form, []).append(statistics.median(values) / 1e9)
    figures.eager.append(report.paired_ratio(samples["eager"], samples["serve"]).median)
    if "inductor" in samples:
        ratio = report.paired_ratio(samples["inductor"], samples["serve"]).median
        figures.inductor.append(ratio)


def _check(figures: Figures) -> None:
    """The other uses, with two layers: they are compiled once more each."""
    architecture = ARCHITECTURES[figures.name]
    published = architecture.published
    size = dataclasses.replace(published, layers=min(published.layers, 2), batch=2, length=16)
    for use in CHECKS:
        try:
            figures.checked += check(architecture, size, use)
        except AssertionError as error:
            figures.unequal.append(str(error))


def _in_its_own_process(name: str, flags: list[str]) -> Figures:
    """The figures of an architecture; where its process fails, why."""
    command = [sys.executable, "-m", "benchmarks.zoo", name, "--here", *flags]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return Figures(name, failure=f"took more than {_LIMIT} s")
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip() and line[0] != " "]
        why = said[-1] if said else "no message"
        return Figures(name, failure=f"exit status {done.returncode}: {why}")
    return Figures(**json.loads(done.stdout.splitlines()[-1]))


def table(rows: list[Figures]) -> Table:
    """The architectures as people read them."""
    out = Table(
        "model", "size of", "eager", "x eager", "by shape", "x Inductor", "equal", "matches"
    )
    for row in rows:
        inductor = statistics.geometric_mean(row.inductor) if row.inductor else None
        eager = row.times.get("eager", [])
        out.add_row(
            row.name,
            ARCHITECTURES[row.name].source,
            ", ".join(f"{seconds * 1e3:.3g}" for seconds in eager) + (" ms" if eager else ""),
            f"{row.speedup:.2f}" if row.eager else "-",
            ", ".join(f"{ratio:.2f}" for ratio in row.eager),
            "-" if inductor is None else f"{inductor:.2f}",
            f"{row.checked} of {row.checked}" if row.is_equal else "no",
            ", ".join(f"{name} {count}" for name, count in row.matches.items()),
        )
    return out


def verdict(rows: list[Figures]) -> list[str]:
    """The counts of the budget."""
    timed = [row for row in rows if row.eager]
    faster = sum(row.speedup >= FASTER for row in timed)
    slower = [row.name for row in timed if row.speedup < SLOWER]
    unequal = [row.name for row in rows if not row.is_equal]
    lines = [f"equal: {len(rows) - len(unequal)} of {len(rows)}; not: {', '.join(unequal) or '-'}"]
    if timed:
        lines.append(f"faster by {FASTER} x: {faster} of {len(timed)} (budget: {ENOUGH} of 25)")
        lines.append(f"slower than {SLOWER} x (budget: none): {', '.join(slower) or '-'}")
    if beside := [row for row in timed if row.inductor]:
        ahead = sum(statistics.geometric_mean(row.inductor) >= 1 for row in beside)
        lines.append(f"no slower than Inductor with freezing: {ahead} of {len(beside)}")
    return lines


def run(*, quick: bool = False) -> list[Row]:
    """The rows: the geometric mean over the shapes. Quick: two architectures."""
    rows = []
    for name in ("electra", "t5") if quick else ARCHITECTURES:
        found = _in_its_own_process(name, ["--no-checks"])
        times = {form: sum(values) * 1e9 for form, values in found.times.items()}
        for peer, ratios in (("eager", found.eager), ("inductor", found.inductor)):
            ratio = 1 / statistics.geometric_mean(ratios) if ratios else float("nan")
            ours, theirs = (times.get(form, float("nan")) for form in ("serve", peer))
            words = "eager" if peer == "eager" else "Inductor, freezing"
            budget = 1 / SLOWER if peer == "eager" else None
            note = found.failure or "; ".join(found.unequal)
            rows.append(Row(f"zoo {name}, serve", words, ratio, ours, theirs, budget, note))
    return rows


def main() -> int:
    """Prints the table; 1 where a result is not eager's."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__)
    parser.add_argument("models", nargs="*", help=f"of {', '.join(ARCHITECTURES)}; default all")
    parser.add_argument("--no-inductor", action="store_true", help="which compiles slowly")
    parser.add_argument("--no-checks", action="store_true", help="only what is timed is compared")
    parser.add_argument("--no-times", action="store_true", help="only compare")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if unknown := [name for name in given.models if name not in ARCHITECTURES]:
        parser.error(f"no such model: {', '.join(unknown)}")
    if given.here:
        found = measure(
            given.models[0],
            with_inductor=not given.no_inductor,
            with_checks=not given.no_checks,
            timed=not given.no_times,
        )
        print(json.dumps(asdict(found)))
        return 0
    chosen = ("inductor", "checks", "times")
    flags = [f"--no-{word}" for word in chosen if getattr(given, f"no_{word}")]
    console = Console(width=200)
    rows = []
    for name in given.models or ARCHITECTURES:
        rows.append(_in_its_own_process(name, flags))
        console.print(table(rows[-1:]))
        for text in (rows[-1].failure, *rows[-1].unequal, *rows[-1].refusals):
            if text:
                console.print(f"{name}: {text}", markup=False)
    console.print(table(rows))
    for line in verdict(rows):
        console.print(line, markup=False)
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    return 0 if all(row.is_equal for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
