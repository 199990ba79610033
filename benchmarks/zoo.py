"""The pass library over transformers' models: `python -m benchmarks.zoo`.

Each model has random weights and is compiled with `freeze`. Its operators are run one by one
(`compiled`) and as a captured graph (`captured`); eager is the model as it is.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table

from benchmarks._harness import Row, interleave, row
from benchmarks._zoo import MODELS, Size, Trial, compile_model, subject

SIZE = Size(layers=4, hidden=256, inner=1024, heads=4, batch=1, length=32)


@dataclass
class Line:
    """One model: its trial, and nanoseconds per call of each form, round by round."""

    name: str
    trial: Trial
    samples: dict[str, list[float]]

    def ratio(self, form: str) -> float:
        """The median over rounds of a form's time to eager's."""
        pairs = zip(self.samples[form], self.samples["eager"], strict=True)
        return statistics.median(ours / eager for ours, eager in pairs)

    @property
    def matches(self) -> str:
        """What matched, without passes that only clean up."""
        found = {
            name.removeprefix("Library"): count
            for name, count in self.trial.report.matches.items()
            if count and name not in ("LibraryDropCopies", "LibraryFoldFactories")
        }
        return ", ".join(f"{name} {count}" for name, count in found.items())


@torch.no_grad()
def measure(name: str, attention: str, rounds: int) -> Line:
    """Compile and time one model, on one thread: so small models show the cost around kernels."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure(name, attention, rounds)
    finally:
        torch.set_num_threads(threads)


def _measure(name: str, attention: str, rounds: int) -> Line:
    item = subject(name, SIZE, attention)
    trial = compile_model(item)
    compiled = trial.compiled
    captured = torch.compile(
        item.model, backend="bringup", options={"freeze": True, "capture": True}
    )
    samples = interleave(
        {
            "eager": lambda: item.run(item.model),
            "compiled": lambda: item.run(compiled),
            "captured": lambda: item.run(captured),
        },
        rounds=rounds,
        calls=1,
    )
    return Line(f"{name}, {attention}", trial, samples)


def run(*, quick: bool = False) -> list[Row]:
    """The rows: compiled and captured against eager."""
    rows = []
    for name in ("bert", "llama") if quick else MODELS:
        line = measure(name, "sdpa", 5 if quick else 15)
        for form in ("compiled", "captured"):
            samples = line.samples
            rows.append(row(f"zoo {name} {form}", "eager", samples[form], samples["eager"]))
    return rows


def table(lines: list[Line]) -> Table:
    """The zoo as people read it."""
    out = Table("model", "matches", "operators", "eager", "compiled", "captured", "error")
    for line in lines:
        eager = statistics.median(line.samples["eager"]) / 1e6
        operators = f"{line.trial.before.total()} -> {line.trial.after.total()}"
        ratios = [f"{line.ratio(form):.2f} x eager" for form in ("compiled", "captured")]
        out.add_row(
            line.name,
            line.matches,
            operators,
            f"{eager:.2f} ms",
            *ratios,
            f"{line.trial.error:.0e}",
        )
    return out


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__)
    parser.add_argument("models", nargs="*", help=f"of {', '.join(MODELS)}; default all")
    parser.add_argument("--attention", choices=("sdpa", "eager"), help="default: both")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    kinds = (options.attention,) if options.attention else ("sdpa", "eager")
    lines = [
        measure(name, attention, options.rounds)
        for name in options.models or MODELS
        for attention in kinds
    ]
    Console(width=170).print(table(lines))


if __name__ == "__main__":
    main()
