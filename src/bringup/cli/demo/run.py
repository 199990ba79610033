"""The demo from start to end. Each step says in plain words what it does; the result is a value."""

from __future__ import annotations

import functools
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.text import Text

from bringup import __version__, compiler, devices, kernels, passes
from bringup.cli.demo import gates, measure, model, modes, texts
from bringup.cli.demo.measure import Pair, Row
from bringup.cli.demo.modes import Mode, ModelRunner
from bringup.cli.demo.texts import Sentence
from bringup.errors import BringupError

_ROUNDS = {"cpu": 15, "npu": 5}
_QUICK_ROUNDS = 3
_QUICK_SENTENCES = 6
_MOST_BUCKETS = 16


@dataclass(frozen=True)
class DemoOptions:
    """What the user asked for."""

    file: Path | None = None
    text: str | None = None
    quick: bool = False
    freezing: bool = False
    devices: tuple[str, ...] = ("cpu", "npu")


@dataclass
class DemoResult:
    """What came out.

    Attributes:
        rows: the table.
        nearest: the nearest sentence pairs by the embeddings of the captured graphs.
        notes: what a reader should know about this run.
        failures: checks that did not hold; empty when all is well.
        about: versions and sizes.
    """

    rows: list[Row] = field(default_factory=list)
    nearest: list[Pair] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    about: dict[str, object] = field(default_factory=dict)


@contextmanager
def _step(console: Console, words: str) -> Iterator[None]:
    """Show a step while it runs, on a terminal, and its seconds behind it."""
    started = time.perf_counter()
    with console.status(Text(words)):
        yield
    seconds = time.perf_counter() - started
    console.print(f"{words}: {seconds:.1f} s", markup=False, highlight=False)


def run_demo(options: DemoOptions, console: Console) -> DemoResult:
    """Run it all. Raises `BringupError`, `ModuleNotFoundError` or `OSError` if it cannot go on."""
    started = time.perf_counter()
    with torch.no_grad():
        run = _Run(options, console)
        run.on(options.devices[0])
        for device in options.devices[1:]:
            run.on_if_possible(device)
    run.result.about = {
        "bringup": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "sentences": len(run.sentences),
        "timed": len(run.timed),
        "seconds": round(time.perf_counter() - started, 1),
        "quick": options.quick,
    }
    return run.result


class _Run:
    """One run of the demo: what all devices share, and the steps on one device."""

    def __init__(self, options: DemoOptions, console: Console) -> None:
        self.options = options
        self.step = functools.partial(_step, console)
        self.result = DemoResult()
        self.folder = model.model_dir()
        for error in passes.load_pass_plugins().errors:
            raise error  # otherwise the table would show another program than the user's
        with self.step("Loading the weights of all-MiniLM-L6-v2 and reading the sentences"):
            tokenizer = model.load_tokenizer(self.folder)
            lines = texts.read_texts(options.file, options.text)
            self.sentences = texts.encode(lines, tokenizer, texts.LONGEST)
            if cut := sum(sentence.cut for sentence in self.sentences):
                self.result.notes.append(
                    f"{cut} of {len(self.sentences)} sentences were cut to {texts.LONGEST} tokens."
                )
            count = _QUICK_SENTENCES if options.quick else len(self.sentences)
            self.timed = texts.spread(self.sentences, count)
            self.masked = model.MaskedEmbedder(model.load_model(self.folder, "sdpa"))
        names = kernels.names()
        with self.step(f"Compiling {len(names)} C++ kernels: {', '.join(names)}"):
            for name in names:
                kernels.build(name)
        self.reference = measure.embed_all(modes.eager(self.masked, "cpu"), self.sentences)

    def on_if_possible(self, device: str) -> None:
        """Run the same on one device more; what stops it does not hide the others."""
        try:
            self.on(device)
        except BringupError as error:
            self.result.failures.append(f"{device}: {type(error).__name__}: {error}")

    def on(self, device: str) -> None:
        """Run, time and compare all modes on one device."""
        candidates = [*self._peers(device), *self._ours(device)]
        padding = gates.padding_failures(candidates[-2:], self.sentences)
        self.result.failures.extend(padding)
        rounds = _QUICK_ROUNDS if self.options.quick else _ROUNDS.get(device, _QUICK_ROUNDS)
        with self.step(f"Embedding all sentences in every mode on {device}"):
            embeddings = [measure.embed_all(candidate, self.sentences) for candidate in candidates]
        words = f"Timing {len(self.timed)} sentences {rounds} times in every mode on {device}"
        with self.step(words):
            timings = measure.time_all(candidates, self.sentences, self.timed, rounds)
        rows = measure.rows_of(candidates, self.sentences, timings, embeddings, self.reference)
        self.result.rows.extend(rows)
        self.result.failures.extend(gates.cosine_failures(rows))
        self._note_wins(candidates, timings)
        if not self.result.nearest and len(self.sentences) > 1:
            self.result.nearest = measure.nearest_pairs(self.sentences, embeddings[-1])

    def _peers(self, device: str) -> list[ModelRunner]:
        """Eager, and Inductor where there is one and time for it."""
        if device != "cpu":
            with self.step(f'Loading the driver of the simulated NPU: torch.device("{device}")'):
                devices.load_driver("sim")
                masked = model.MaskedEmbedder(model.load_model(self.folder, "sdpa").to(device))
            self.result.notes.append(f"Inductor cannot compile for {device}: no rows.")
            return [modes.eager(masked, device)]
        peers = [modes.eager(self.masked, device)]
        if self.options.quick:
            self.result.notes.append("--quick leaves Inductor out, which compiles for very long.")
            return peers
        with self.step("Compiling the model with Inductor, the peer (this takes a while)"):
            peers.append(modes.inductor(self.masked, device))
            _warm_up(peers[-1], self.sentences)
        if self.options.freezing:
            with self.step("Compiling it with Inductor once more, its weights frozen"):
                extremes = _extremes(self.sentences)
                peers.append(modes.frozen_inductor(self.masked, device, extremes))
        return peers

    def _ours(self, device: str) -> list[ModelRunner]:
        """Fused, and fused and captured."""
        prepared = kernels.use_lengths(model.load_model(self.folder, "sdpa"))
        served = model.ServedEmbedder(prepared.to(device)).eval()
        with self.step(f'Fusing the model on {device}: torch.compile(model, backend="bringup")'):
            fused = modes.fused(served, device)
            _warm_up(fused, self.sentences)
        self._note_matches(device)
        ladder = compiler.bucket_ladder((s.tokens for s in self.sentences), _MOST_BUCKETS)
        words = f"Capturing one graph for each of {len(ladder)} padded lengths on {device}"
        with self.step(words):
            captured = modes.captured(served, device, ladder)
            measure.embed_all(captured, self.sentences)
        return [fused, captured]

    def _note_matches(self, device: str) -> None:
        report = compiler.last_report()
        if report is not None:
            found = ", ".join(f"{name} {count}" for name, count in report.matches.items() if count)
            self.result.notes.append(f"passes that matched on {device}: {found}.")

    def _note_wins(self, candidates: Sequence[ModelRunner], timings: measure.Timings) -> None:
        by_mode = dict(zip((candidate.mode for candidate in candidates), timings, strict=True))
        for peer in (Mode.EAGER, Mode.INDUCTOR, Mode.FROZEN_INDUCTOR):
            if peer in by_mode:
                ours, theirs = by_mode[Mode.CAPTURED], by_mode[peer]
                wins = sum(ours[s] < theirs[s] for s in self.timed)
                self.result.notes.append(
                    f"{Mode.CAPTURED.value} on {candidates[0].device} is faster than {peer.value} "
                    f"for {wins} of {len(self.timed)} sentences timed."
                )


def _warm_up(candidate: ModelRunner, sentences: Sequence[Sentence]) -> None:
    for sentence in _extremes(sentences):
        candidate.call(candidate.prepare(sentence))


def _extremes(sentences: Sequence[Sentence]) -> tuple[Sentence, Sentence]:
    """Return the shortest and the longest sentence, by which a compiler sees that lengths vary."""
    ordered = sorted(sentences, key=lambda sentence: sentence.tokens)
    return ordered[0], ordered[-1]
