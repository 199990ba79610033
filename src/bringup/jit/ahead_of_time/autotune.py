"""Measure once which tile sizes, or which way to compute something, is the fastest here."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bringup import settings
from bringup._timing import interleaved
from bringup._version import __version__
from bringup.errors import BringupError, MissingCompilerError
from bringup.jit.ahead_of_time.prebuild import prebuild
from bringup.jit.ahead_of_time.tuning_results import Machine, Tuning, TuningFile
from bringup.jit.files.identity import bytes_digest
from bringup.jit.lookup import compilation
from bringup.jit.target.flags import render_macros
from bringup.jit.target.target import find_target
from bringup.jit.template.params import Params

_MIN_ROUNDS, _MAX_ROUNDS = 3, 15
_BUDGET_S = 0.25  # of measuring, for each candidate
_SAMPLE_S = 0.002
_QUICK_ROUNDS, _QUICK_BUDGET_S, _QUICK_SAMPLE_S = 25, 0.015, 0.0001  # of `measured`
_NOISE = 0.02  # what is not faster by this much does not displace the default

_log = settings.logger("jit")
_files: dict[tuple[Path, Machine], TuningFile] = {}


def forget() -> None:
    """Make this process look at the disk again, as a new one does."""
    _files.clear()


def _threads() -> int:
    return len(os.sched_getaffinity(0))


def _tile(params: Params) -> str:
    return " ".join(render_macros(params.template.tiles[params.tile]))


def _key(params: Params, name: str, target: str) -> str:
    """Return the key of a result: kernel, content of source, target, and the call's choices."""
    tiled = params.template.tiles[0]
    decided = {macro: value for macro, value in params.macros.items() if macro not in tiled}
    glued = params.bound.glued.source
    content = bytes_digest(f"{params.template.source.digest()}{glued.digest()}".encode())
    return " ".join([name, content[:16], target, *render_macros(decided)])


class _TileQuestion:
    """Which tile sizes a parameter set should have on this machine."""

    def __init__(
        self, params: Params, name: str, target: str, threads: int | None, device: str
    ) -> None:
        store = compilation.cache()
        platform = find_target(target)
        toolchain = platform.toolchain(store, params.template.kind)
        machine = Machine.here(toolchain, threads or _threads(), device)
        self.params = params
        self.target = target
        self.key = _key(params, name or params.template.name, target)
        self.candidates = tuple(params.with_tile(i) for i in range(len(params.template.tiles)))
        tiles = "\n".join(map(_tile, self.candidates))
        self.basis = bytes_digest(f"{__version__}\n{toolchain.fingerprint}\n{tiles}".encode())[:16]
        self.file = _files.setdefault((store.root, machine), TuningFile(store, machine))

    def answer(self) -> Params | None:
        """Return the set with the tile sizes that were found, if that result still holds."""
        found = self.file.get(self.key)
        if found is None:
            return None
        if found.basis != self.basis:
            _log.info("tile sizes of %s were measured with another compiler or version", self.key)
            return None
        return next((one for one in self.candidates if _tile(one) == found.tile), None)


def _is_on(params: Params) -> bool:
    return len(params.template.tiles) > 1 and settings.jit_autotune()


def tuned(
    params: Params,
    *,
    name: str = "",
    target: str = "cpu",
    threads: int | None = None,
    device: str = "",
) -> Params:
    """Return the parameter set with the tile sizes that were measured for it, or as it is when
    there are none that hold here. Measures nothing.

    Args:
        params: the parameter set of a call.
        name, target, threads, device: as given to `tune`, which also says what is raised.
    """
    if not _is_on(params):
        return params
    try:
        return _TileQuestion(params, name, target, threads, device).answer() or params
    except MissingCompilerError:  # then it comes from a bundle, which has the default tile sizes
        return params


def tune(
    params: Params,
    prepare: Callable[[Params], Callable[[], object]],
    *,
    name: str = "",
    target: str = "cpu",
    threads: int | None = None,
    device: str = "",
) -> Params:
    """Return the parameter set with the fastest of its template's tile sizes, measured now if that
    is not known yet. What is found is kept in the cache, for this machine and the compiler in use.

    All candidates are built together. One that does not compile or that refuses to run is left
    out. While others measure on this machine, this waits.

    Args:
        params: the parameter set of a call.
        prepare: gives, for a parameter set, what runs the kernel once and waits for it.
        name: what the results belong to; the template's name by default.
        target: what is built for.
        threads: how many threads the kernel may use; as many as this process has processors by
            default.
        device: the architecture of the device, where that is not this machine's processor.

    Raises:
        CompileError, KernelError, ...: what the default tile sizes raise, when none can run.
    """
    if not _is_on(params):
        return params
    question = _TileQuestion(params, name, target, threads, device)
    if (known := question.answer()) or compilation.is_frozen():
        return known or params
    prebuild([candidate.spec(target) for candidate in question.candidates])
    with question.file.alone():
        if known := question.answer():  # measured by another process
            return known
        seconds = _measure(question, prepare)
        best = fastest(seconds)
        result = Tuning(best, seconds, question.basis)
        question.file.save(question.key, result)
    _log.info("%s: %s is the fastest of %s", question.key, best, seconds)
    return next(one for one in question.candidates if _tile(one) == best)


def measured(
    key: str,
    ways: Sequence[str],
    prepare: Callable[[], Mapping[str, Callable[[], object]]],
    *,
    basis: str = "",
    threads: int | None = None,
) -> Mapping[str, float]:
    """Return seconds that one run takes in each of several ways, the best of a few rounds, on the
    cpu of this machine: measured once and kept in the cache. Empty where nothing is measured:
    because `BRINGUP_JIT_AUTOTUNE` is 0, because `jit` is frozen and it is not known, or because
    there is no compiler, whose machine the results would belong to. While others measure, this
    waits.

    Args:
        key: what the results are kept under; it begins with a name of the kind of question.
        ways: names of the ways.
        prepare: gives, by way, what runs it once; called where something is measured.
        basis: what the results hold for besides the machine, the ways and the version of bringup.
        threads: how many threads may be used; as many as this process has processors by default.
    """
    if not settings.jit_autotune():
        return {}
    store = compilation.cache()
    try:
        toolchain = find_target("cpu").toolchain(store, "device")
    except MissingCompilerError:
        return {}
    machine = Machine.here(toolchain, threads or _threads())
    file = _files.setdefault((store.root, machine), TuningFile(store, machine))
    held = bytes_digest("\n".join((__version__, basis, *ways)).encode())[:16]

    def known() -> Mapping[str, float]:
        found = file.get(key)
        return found.seconds if found is not None and found.basis == held else {}

    if (seconds := known()) or compilation.is_frozen():
        return seconds
    with file.alone():
        if seconds := known():
            return seconds
        samples = _samples(prepare(), _QUICK_ROUNDS, _QUICK_SAMPLE_S, _QUICK_BUDGET_S)
        best = {way: min(taken) for way, taken in samples.items()}
        file.save(key, Tuning(min(best, key=best.__getitem__), best, held))
    return best


def _measure(
    question: _TileQuestion, prepare: Callable[[Params], Callable[[], object]]
) -> dict[str, float]:
    """Return median seconds of a run by tile sizes, for those that can run."""
    runs: dict[str, Callable[[], object]] = {}
    first: BringupError | None = None
    for candidate in question.candidates:
        try:
            run = prepare(candidate)
            run()
        except BringupError as error:
            first = first or error
            _log.info("%s cannot run with %s: %s", question.key, _tile(candidate), error)
        else:
            runs[_tile(candidate)] = run
    if not runs:
        assert first is not None, "a template with tiles has candidates"
        raise first
    import statistics  # it loads decimal and fractions

    return {tile: statistics.median(samples) for tile, samples in _samples(runs).items()}


def _samples(
    runs: Mapping[str, Callable[[], object]],
    rounds: int = _MAX_ROUNDS,
    sample_s: float = _SAMPLE_S,
    budget_s: float = _BUDGET_S,
) -> dict[str, list[float]]:
    """Return seconds of a run, by candidate and round."""
    samples: dict[str, list[float]] = {tile: [] for tile in runs}
    end = time.perf_counter() + budget_s * len(runs)
    taken = interleaved(runs, sample_ns=round(sample_s * 1e9))
    for turn, sampled in enumerate(itertools.islice(taken, rounds), start=1):
        for tile, nanoseconds in sampled.items():
            samples[tile].append(nanoseconds / 1e9)
        if turn >= _MIN_ROUNDS and time.perf_counter() > end:
            break
    return samples


def fastest(seconds: Mapping[str, float]) -> str:
    """Return the fastest tile sizes; the first ones unless another is faster by more than noise."""
    default = next(iter(seconds))
    best = min(seconds, key=lambda tile: seconds[tile])
    return best if seconds[best] < (1 - _NOISE) * seconds[default] else default
