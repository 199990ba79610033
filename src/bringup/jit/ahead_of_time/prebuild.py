"""`prebuild`: many kernels before they are needed, by threads here or by any executor elsewhere.

Another machine's worker sends its entry back; one whose compiler or processor differs is refused,
for what it builds has another key.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from bringup._executors import completed, opened
from bringup.errors import CompileError, MissingCompilerError, first_line
from bringup.jit.builder.request import Request
from bringup.jit.files.headers import Header
from bringup.jit.lookup import compilation, events, progress
from bringup.jit.lookup.publish import publish_from_elsewhere
from bringup.jit.lookup.spec import Spec
from bringup.jit.source.source import Source
from bringup.jit.store.bundle import Packed, pack_entry
from bringup.jit.store.cache import Cache
from bringup.jit.template.params import Params

Status: TypeAlias = Literal["built", "hit", "failed"]


@dataclass(frozen=True)
class Outcome:
    """What became of one spec.

    Attributes:
        spec: the kernel, with the target that it was built for.
        status: `"built"` now, a `"hit"` in the cache, or `"failed"`.
        key: its build key; empty when it failed.
        seconds: how long it took where it was built.
        error: why it failed.
        worker: host and process that built it, or tried to.
    """

    spec: Spec
    status: Status
    key: str = ""
    seconds: float = 0.0
    error: BaseException | None = None
    worker: str = ""

    def __str__(self) -> str:
        text = f"{self.status}: {self.spec}"
        if self.status == "built":
            return f"{text} in {self.seconds:.2f} s"
        return f"{text}: {self.error}" if self.error else text


@dataclass(frozen=True)
class PrebuildReport:
    """What became of every spec, in the order in which they were given.

    Attributes:
        outcomes: one for each spec.
    """

    outcomes: tuple[Outcome, ...]

    def _with(self, status: Status) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.status == status)

    @property
    def built(self) -> tuple[Outcome, ...]:
        """Return those that were compiled now."""
        return self._with("built")

    @property
    def hits(self) -> tuple[Outcome, ...]:
        """Return those that were in the cache."""
        return self._with("hit")

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """Return those that could not be built; each has its `error`."""
        return self._with("failed")

    def check(self) -> PrebuildReport:
        """Return this report, or raise `CompileError` with every failure."""
        if self.failed:
            failures = "\n".join(f"- {outcome}" for outcome in self.failed)
            count = f"{len(self.failed)} of {len(self.outcomes)}"
            raise CompileError(f"{count} kernels could not be built:\n{failures}")
        return self

    def __str__(self) -> str:
        counts = (
            f"{len(self.built)} built, {len(self.hits)} in the cache, {len(self.failed)} failed"
        )
        return "\n".join([counts, *(f"  {outcome}" for outcome in self.failed)])


@dataclass(frozen=True)
class _Job:
    """What a worker gets. It refuses when its compiler is not the one with this fingerprint."""

    spec: Spec
    fingerprint: str
    home: tuple[str, str]


def _home() -> tuple[str, str]:
    """Return machine and folder of the cache; workers with both need nothing sent."""
    return os.uname().nodename, str(compilation.cache().root)


def _worker_name() -> str:
    return f"{os.uname().nodename}:{os.getpid()}"


def _request(spec: Spec) -> Request:
    return compilation.request_for(spec.source, **spec.arguments, store=compilation.cache())


@contextlib.contextmanager
def _builds_of_this_thread() -> Iterator[list[events.CompileFinished]]:
    """Collect the compiles that finish on this thread."""
    thread, finished = threading.get_ident(), []

    def note(event: events.Event) -> None:
        if isinstance(event, events.CompileFinished) and threading.get_ident() == thread:
            finished.append(event)

    end = events.subscribe(note, events.CompileFinished)
    try:
        yield finished
    finally:
        end()


def _work(job: _Job) -> tuple[Outcome, Packed | None]:
    """Build in a worker, and pack the entry when it has to travel. Never raises."""
    worker = _worker_name()
    try:
        with progress.quiet(), _builds_of_this_thread() as finished:
            request = _request(job.spec)
            if request.toolchain.fingerprint != job.fingerprint:
                raise CompileError(
                    f"refused by worker {worker}: its compiler {request.toolchain.compiler} "
                    f"({request.toolchain.version}) on {request.toolchain.machine}, or what "
                    "-march=native means there, is not that of the machine that wants the "
                    "kernel. Give prebuild an executor whose workers have the same of both"
                )
            binary = compilation.compile(job.spec.source, **job.spec.arguments)
        packed = None if _home() == job.home else pack_entry(binary.path.parent)
    except Exception as error:
        return Outcome(job.spec, "failed", error=error, worker=worker), None
    status: Status = "built" if finished else "hit"
    seconds = sum(event.seconds for event in finished)
    return Outcome(job.spec, status, binary.key, seconds, worker=worker), packed


def _plan(spec: Spec) -> Outcome | _Job:
    """Return a hit or a failure at once, or work for a worker."""
    if spec.source.is_library:
        return _already_there(spec)
    try:
        request = _request(spec)
        hit = compilation.find(request, compilation.cache())
    except MissingCompilerError:
        return _already_there(spec)
    except Exception as error:
        return Outcome(spec, "failed", error=error, worker=_worker_name())
    if hit is not None:
        return Outcome(spec, "hit", hit.key)
    return _Job(spec, request.toolchain.fingerprint, _home())


def _already_there(spec: Spec) -> Outcome:
    """Return what needs no compiler: a library, or a kernel of a bundle or of the shared tier."""
    try:
        return Outcome(spec, "hit", compilation.compile(spec.source, **spec.arguments).key)
    except Exception as error:
        return Outcome(spec, "failed", error=error, worker=_worker_name())


def _result(spec: Spec, future: Future[tuple[Outcome, Packed | None]]) -> Outcome:
    """Return what the worker says, with its entry in the cache here."""
    try:
        outcome, packed = future.result()
        request, store = _request(spec), compilation.cache()
        if packed is not None and compilation.find(request, store) is None:
            _take(packed, request, store)
    except Exception as error:  # the worker or its machine is gone, or sent something else
        return Outcome(spec, "failed", error=error)
    return outcome


def _take(packed: Packed, request: Request, store: Cache) -> None:
    """Publish an entry built elsewhere as the answer to `request`. Raises `CompileError`."""
    packed.check()
    record, digest = packed.meta["record"], request.source.digest()
    digests = (*record["headers"], *record["inputs"])
    files = [Header(*pair, None) for pair in zip(packed.meta["headers"], digests, strict=True)]
    if publish_from_elsewhere(request, digest, packed, files, store) is None:
        raise CompileError(f"{request.source}: the worker built something else than was asked for")
    if store.lookup(request.key(digest)) is None:
        raise CompileError(
            f"{request.source}: the worker's headers or libraries have another content than those "
            f"here: one of {', '.join(packed.meta['headers'])}"
        )


def _as_spec(given: Spec | Source | Params) -> Spec:
    if isinstance(given, Params):
        return given.spec()
    if isinstance(given, Source):
        return Spec(given)
    if isinstance(given, Spec):
        return given
    raise TypeError(
        f"jit.prebuild: expected jit.Spec, jit.Source or jit.Params, got {type(given).__name__} "
        f"({given!r})"
    )


def _wanted(specs: Iterable[Spec | Source | Params], targets: Sequence[str] | None) -> list[Spec]:
    """Return each spec once for each target."""
    if isinstance(targets, str):
        raise TypeError(f"jit.prebuild(targets={targets!r}): expected a list of targets")
    wanted: dict[Spec, None] = {}
    for given in specs:
        spec = _as_spec(given)
        for target in targets or [spec.target]:
            wanted[replace(spec, target=target)] = None
    return list(wanted)


@contextlib.contextmanager
def _executor(given: Executor | str | None, workers: int | None, jobs: int) -> Iterator[Executor]:
    if given is not None:
        with opened(given) as executor:
            yield executor
        return
    # A compiler is a process of its own: threads are enough to wait for it.
    count = workers or len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(max(1, min(count, jobs)), "bringup-prebuild") as pool:
        yield pool


def prebuild(
    specs: Iterable[Spec | Source | Params],
    *,
    workers: int | None = None,
    targets: Sequence[str] | None = None,
    executor: Executor | str | None = None,
) -> PrebuildReport:
    """Build every kernel that the cache does not have, and return a report with an outcome for
    each; one that fails does not stop the others (`report.check()` raises then).

    Args:
        specs: what to build: a source alone is built without macros and flags, the parameter set of
            a template's call with its own.
        workers: how many compilers run at a time here; as many as there are processors by default.
        targets: build each spec for each of these, instead of the spec's own target.
        executor: who builds: a `concurrent.futures` executor, also of processes or another machine,
            or the address of an engine, "dask://HOST:PORT" or "ray://HOST:PORT". Workers need this
            version of bringup, compiler and processor, and source files at the same paths.

    Raises:
        TypeError: a spec is none, or `executor` is no executor.
        ValueError: `workers` is not positive, or given with `executor`, or that is no address.
        ConnectionError: nothing answers at the address.
    """
    if executor is not None and workers is not None:
        raise ValueError("jit.prebuild: workers= is for its own threads; executor= brings its own")
    if workers is not None and workers < 1:
        raise ValueError(f"jit.prebuild(workers={workers}): expected a positive number")
    plans = {spec: _plan(spec) for spec in _wanted(specs, targets)}
    jobs = {spec: (plan,) for spec, plan in plans.items() if isinstance(plan, _Job)}
    found = {spec: plan for spec, plan in plans.items() if isinstance(plan, Outcome)}
    if jobs or executor is not None:  # what is no executor is refused, whether needed or not
        with (
            _executor(executor, workers, len(jobs)) as pool,
            progress.batch(len(jobs)) as report_outcome,
            contextlib.closing(completed(pool, _work, jobs)) as ended,
        ):
            for spec, future in ended:
                found[spec] = _result(spec, future)
                report_outcome(first_line(found[spec]))
    return PrebuildReport(tuple(found[spec] for spec in plans))
