"""The demo from start to end. Each step says in plain words what it does; the result is a value."""

from __future__ import annotations

import functools
import math
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.text import Text

from bringup import __version__, compiler, devices, kernels, passes
from bringup.cli.demo import acts, gates, measure, model, modes, texts
from bringup.cli.demo.acts import Act
from bringup.cli.demo.measure import Pair, Row
from bringup.cli.demo.modes import Mode, ModelRunner
from bringup.cli.demo.texts import LengthClass, Sentence
from bringup.cli.trial.inductor import InductorError, compile_within
from bringup.cli.trial.threads import thread_count
from bringup.cli.trial.timing import Limits
from bringup.cli.trial.verdict import spread
from bringup.errors import BringupError
from bringup.report import Judgement

_FULL_ROUNDS = {"cpu": 15, "npu": 6}
_FEWEST_ROUNDS = 6  # that an interval needs
_LEAST_SECONDS = 5.0  # even where the time is up
_INDUCTORS_SHARE = 1 / 3  # of the time: the peer is compiled and timed in it
_CLASS_SECONDS = 15.0  # for the sentences of a length class, at most
_INDUCTOR_SECONDS = {False: 60.0, True: 600.0}  # for its compile; by whether --full
_SENTENCES = 8  # of a length class
_QUICK_SENTENCES = 2
QUICK_SECONDS = 1.0
_MOST_BUCKETS = 16
_MORE = " (--full gives it 600 s)"
_EXAMPLE = "bringup.cli.demo.model:example"


@dataclass(frozen=True)
class DemoOptions:
    """What the user asked for."""

    file: Path | None = None
    text: str | None = None
    quick: bool = False
    freezing: bool = False
    seconds: float = 90.0
    full: bool = False
    acts: bool = True
    threads: int | None = None
    devices: tuple[str, ...] = ("cpu", "npu")


@dataclass
class DemoResult:
    """What came out: table, nearest pairs by the captured graphs, and checks that failed."""

    rows: list[Row] = field(default_factory=list)
    nearest: list[Pair] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    acts: list[Act] = field(default_factory=list)
    is_interrupted: bool = False
    about: dict[str, object] = field(default_factory=dict)


def run_demo(options: DemoOptions, console: Console) -> DemoResult:
    """Run it all; Ctrl-C ends it early with what was measured. Raises what stops it."""
    started = time.perf_counter()
    result = DemoResult()
    run = None
    with torch.no_grad(), thread_count(options.threads) as words:
        result.notes += [words] if words else []
        try:
            if options.acts:
                acts.perform(result.acts, functools.partial(_step, console))
                failed = (act for act in result.acts if act.has_failed)
                result.failures += [f"{act.title}: {act.words}" for act in failed]
            run = _Run(options, console, result)
            run.on_all()
        except KeyboardInterrupt:
            result.is_interrupted = True
        if run is not None:
            run.finish()
        threads = torch.get_num_threads()
    result.about = {
        "bringup": __version__, "torch": torch.__version__, "python": platform.python_version(),
        "machine": platform.machine(), "threads": threads,
        "sentences": 0 if run is None else len(run.sentences),
        "timed": 0 if run is None else sum(map(len, run.timed.values())),
        "seconds": round(time.perf_counter() - started, 1), "quick": options.quick,
    }  # fmt: skip
    return result


@contextmanager
def _step(console: Console, words: str) -> Iterator[None]:
    """Show a step while it runs, on a terminal, and its seconds behind it."""
    started = time.perf_counter()
    with console.status(Text(words)):
        yield
    seconds = time.perf_counter() - started
    console.print(f"{words}: {seconds:.1f} s", markup=False, highlight=False, soft_wrap=True)


@dataclass
class _Device:
    """What one device has: its modes, their embeddings, and the rounds of every length class."""

    name: str
    candidates: list[ModelRunner]
    embeddings: list[torch.Tensor]
    rounds: dict[LengthClass, measure.SentenceRounds]


class _Run:
    """One run of the demo: what all devices share, and the steps on one device."""

    def __init__(self, options: DemoOptions, console: Console, result: DemoResult) -> None:
        self.options = options
        self.console = console
        self.started = time.perf_counter()
        self.result = result
        self.devices: list[_Device] = []
        self.folder = model.model_dir()
        for error in passes.load_pass_plugins().errors:
            raise error  # otherwise the table would show another program than the user's
        with self.step("Loading the weights of all-MiniLM-L6-v2 and the sentences"):
            tokenizer = model.load_tokenizer(self.folder)
            lines = texts.read_texts(options.file, options.text)
            self.sentences = texts.encode(lines, tokenizer, texts.LONGEST)
            if cut := sum(sentence.cut for sentence in self.sentences):
                self.result.notes.append(
                    f"{cut} of {len(self.sentences)} sentences were cut to {texts.LONGEST} tokens."
                )
            count = _QUICK_SENTENCES if options.quick else _SENTENCES
            count = len(self.sentences) + 1 if options.full else count
            self.timed = texts.spread_by_class(self.sentences, count)
            self.masked = model.MaskedEmbedder(model.load_model(self.folder, "sdpa"))
        names = kernels.names()
        with self.step(f"Compiling {len(names)} C++ kernels, where the cache has them not"):
            for name in names:
                kernels.build(name)
        self.reference = measure.embed_all(modes.eager(self.masked, "cpu"), self.sentences)

    def step(self, words: str) -> AbstractContextManager[None]:
        over = time.perf_counter() - self.started
        return _step(self.console, f"[{over:3.0f} of {self.options.seconds:.0f} s] {words}")

    def on_all(self) -> None:
        """Run it on all devices, the first of which must work, and through Inductor last."""
        with_inductor = not self.options.quick and self.options.devices[0] == "cpu"
        ours = self.options.seconds * (1 - _INDUCTORS_SHARE * with_inductor)
        for number, device in enumerate(self.options.devices, start=1):
            share = ours * number / len(self.options.devices)
            try:
                self.on(device, self.started + share)
            except BringupError as error:
                if number == 1:
                    raise
                self.result.failures.append(f"{device}: {type(error).__name__}: {error}")
        if self.options.quick:
            self.result.notes.append("--quick leaves Inductor out, which compiles for very long.")
        elif with_inductor:
            self._compare_with_inductor(self.devices[0])

    def on(self, name: str, end: float) -> None:
        candidates = [self._eager(name), *self._ours(name)]
        padding = gates.padding_failures(candidates[-2:], self.sentences)
        self.result.failures.extend(padding)
        with self.step(f"Embedding all sentences in every mode on {name}"):
            embeddings = [measure.embed_all(candidate, self.sentences) for candidate in candidates]
        rounds = {kind: measure.sentence_rounds() for kind in self.timed}
        self.devices.append(_Device(name, candidates, embeddings, rounds))
        if not self.result.nearest and len(self.sentences) > 1:
            self.result.nearest = measure.nearest_pairs(self.sentences, embeddings[-1])
        if not self.options.full or name != "cpu":
            self._time(self.devices[-1], end)

    def _time(self, device: _Device, end: float) -> None:
        count = sum(map(len, self.timed.values()))
        with self.step(f"Timing {count} sentences in every mode on {device.name}"):
            for left, (kind, timed) in enumerate(reversed(self.timed.items())):
                seconds = (end - time.perf_counter()) / (len(self.timed) - left)
                limits = self._limits(device.name, seconds)
                rounds = device.rounds[kind]
                measure.time_sentences(rounds, device.candidates, self.sentences, timed, limits)

    def _limits(self, device: str, seconds: float) -> Limits:
        if self.options.full:
            return Limits(math.inf, _FULL_ROUNDS.get(device, _FEWEST_ROUNDS), math.inf)
        most = QUICK_SECONDS if self.options.quick else _CLASS_SECONDS
        return Limits(min(max(seconds, _LEAST_SECONDS), most), _FEWEST_ROUNDS, 0.05)

    def finish(self) -> None:
        for device in self.devices:
            rows = measure.rows_of(
                device.candidates, self.sentences, device.rounds, device.embeddings, self.reference
            )
            self.result.rows.extend(rows)
            self.result.failures.extend(gates.cosine_failures(rows))
            self._note_wins(device)

    def _eager(self, device: str) -> ModelRunner:
        if device == "cpu":
            return modes.eager(self.masked, device)
        with self.step(f'Loading the driver of the simulated NPU: torch.device("{device}")'):
            devices.load_driver("sim")
            masked = model.MaskedEmbedder(model.load_model(self.folder, "sdpa").to(device))
        self.result.notes.append(f"Inductor is timed on cpu alone, not on {device}.")
        return modes.eager(masked, device)

    def _compare_with_inductor(self, device: _Device) -> None:
        """Compile it in another process first, which can be ended, then time everything."""
        made: list[ModelRunner] = []
        seconds = _INDUCTOR_SECONDS[self.options.full]
        words = f"Compiling the model with Inductor, the peer, in at most {seconds:.0f} s"
        try:
            with self.step(words):
                compile_within(seconds, _EXAMPLE, frozen=False, dynamic=True, hint=_MORE)
                made.append(modes.inductor(self.masked, device.name))
                _warm_up(made[-1], self.sentences)
            if self.options.freezing:
                with self.step("Compiling it with Inductor once more, its weights frozen"):
                    compile_within(seconds, _EXAMPLE, dynamic=True, hint=_MORE)
                    extremes = _extremes(self.sentences)
                    made.append(modes.frozen_inductor(self.masked, device.name, extremes))
        except InductorError as error:
            self.result.notes.append(f"No rows of Inductor: {error}")
        device.embeddings += [measure.embed_all(peer, self.sentences) for peer in made]
        device.candidates += made
        if made or self.options.full:
            self._time(device, self.started + self.options.seconds)

    def _ours(self, device: str) -> list[ModelRunner]:
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

    def _note_wins(self, device: _Device) -> None:
        wins: dict[Mode, int] = {}
        without_gain = []
        total = 0
        for kind, rounds in device.rounds.items():
            ours = measure.medians(rounds, Mode.CAPTURED)
            total += len(ours)
            for peer in (Mode.EAGER, Mode.INDUCTOR, Mode.FROZEN_INDUCTOR):
                if theirs := measure.medians(rounds, peer):
                    wins[peer] = wins.get(peer, 0) + sum(ours[s] < theirs[s] for s in ours)
            both = (Mode.FUSED.value, Mode.CAPTURED.value)
            if rounds.has(*both) and rounds.ratio(*both).judgement is not Judgement.MORE:
                without_gain.append(f"{kind.value} {spread(rounds.ratio(*both))}")
        if without_gain:
            self.result.notes.append(
                f"Captured is not faster than fused beyond doubt on {device.name}: "
                f"{', '.join(without_gain)}."
            )
        for peer, won in wins.items():
            self.result.notes.append(
                f"{Mode.CAPTURED.value} on {device.name} is faster than {peer.value} "
                f"for {won} of {total} sentences timed."
            )


def _warm_up(candidate: ModelRunner, sentences: Sequence[Sentence]) -> None:
    for sentence in _extremes(sentences):
        candidate.call(candidate.prepare(sentence))


def _extremes(sentences: Sequence[Sentence]) -> tuple[Sentence, Sentence]:
    """Return the shortest and the longest sentence, by which a compiler sees that lengths vary."""
    ordered = sorted(sentences, key=lambda sentence: sentence.tokens)
    return ordered[0], ordered[-1]
