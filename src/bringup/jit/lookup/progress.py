"""What people see while kernels are built: nothing for a hit or compiles of less than two seconds
together, then a live display on a terminal and plain lines elsewhere, on stderr. `batch` shows a
known number of kernels from the start.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bringup import settings
from bringup.jit.lookup import events

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


@dataclass(frozen=True)
class Timing:
    """When what is shown, in seconds."""

    patience: float = 2.0  # compiles that take less together are not shown
    heartbeat: float = 10.0  # between two lines that say that something still runs
    pause: float = 1.0  # compiles with a shorter pause between them belong together


timing = Timing()

_local = threading.local()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Within, compiles of this thread are not shown: a batch shows them as a whole."""
    before = getattr(_local, "quiet", False)
    _local.quiet = True
    try:
        yield
    finally:
        _local.quiet = before


def _wanted() -> bool:
    return sys.stderr is not None and settings.jit_progress()


class _Terminal:
    """The one live display; it is there while it has a line."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._progress: Progress | None = None
        self._lines = 0

    def add(self, text: str, total: int | None) -> TaskID:
        """Return a new line: a bar when the total is known."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._progress is None:
                columns = (
                    SpinnerColumn(),
                    TextColumn("{task.description}", markup=False),
                    BarColumn(),
                )
                console = Console(stderr=True)
                self._progress = Progress(
                    *columns, TimeElapsedColumn(), console=console, transient=True
                )
                self._progress.start()
            self._lines += 1
            return self._progress.add_task(text, total=total)

    def update(self, line: TaskID, text: str, done: int) -> None:
        if self._progress is not None:
            self._progress.update(line, description=text, completed=done)

    def remove(self, line: TaskID) -> None:
        with self._lock:
            if self._progress is None:
                return
            self._progress.remove_task(line)
            self._lines -= 1
            if self._lines == 0:
                self._progress.stop()
                self._progress = None

    def note(self, text: str) -> bool:
        """Print a line above the display; False when there is none."""
        with self._lock:
            if self._progress is None:
                return False
            self._progress.console.print(text, markup=False, highlight=False)
            return True


_terminal = _Terminal()


def note(text: str) -> None:
    """Show a line, if anything is to be shown."""
    if _wanted():
        _note(text)


def _note(text: str) -> None:
    if not _terminal.note(f"bringup: {text}"):
        print(f"bringup: {text}", file=sys.stderr, flush=True)


class _Work:
    """Compiles under way, shown from `start` on; `total` None: not known; `name` comes first."""

    def __init__(self, total: int | None, name: str, *, start: float, since: float) -> None:
        self._total, self._finished, self._name = total, 0, name
        self._start, self._since = start, since
        self._line: TaskID | None = None
        self._shown = self._ended = False
        self._change = threading.Condition()
        if start <= time.monotonic():
            self._show(announces=total is not None)
        watch = threading.Thread(target=self._watch, name="bringup-jit-progress", daemon=True)
        watch.start()

    def done(self, text: str) -> None:
        """Count one more as done; `text` says which and how."""
        with self._change:
            self._finished += 1
            self._update()
            shown = self._shown
        if shown:
            _note(text if self._total is None else f"{self._finished}/{self._total} {text}")

    def doing(self, name: str) -> None:
        with self._change:
            self._name = name
            self._update()

    def close(self) -> None:
        with self._change:
            self._ended = True
            self._change.notify()
            if self._line is not None:
                _terminal.remove(self._line)
                self._line = None

    def _text(self) -> str:
        if self._total is None:
            return f"compiling {self._name}"
        return f"building kernels: {self._finished} of {self._total} done"

    def _update(self) -> None:
        if self._line is not None:
            _terminal.update(self._line, self._text(), self._finished)

    def _show(self, *, announces: bool = True) -> None:
        """Begin to show it; what follows others that are shown says a line when it is done."""
        self._shown = True
        if sys.stderr.isatty():
            self._line = _terminal.add(self._text(), self._total)
        elif announces:
            self._heartbeat()

    def _heartbeat(self) -> None:
        _note(f"{self._text()}, {time.monotonic() - self._since:.0f} s so far")

    def _watch(self) -> None:
        with self._change:
            while not self._ended and not self._shown:
                wait = self._start - time.monotonic()
                if wait <= 0:
                    self._show()
                else:
                    self._change.wait(wait)
            while not self._ended:
                if (
                    not self._change.wait(timing.heartbeat)
                    and not self._ended
                    and self._line is None
                ):
                    self._heartbeat()


@contextlib.contextmanager
def batch(total: int) -> Iterator[Callable[[str], None]]:
    """Show `total` kernels being built, one alone when it is slow; give what takes lines."""
    if not _wanted():
        yield lambda text: None
        return
    now = time.monotonic()
    work = _Work(total, "", start=now + (timing.patience if total == 1 else 0), since=now)
    try:
        yield work.done
    finally:
        work.close()


class _Ambient:
    """Compiles outside of a batch, shown when they take long together."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything: a forked child has none of its parent's threads."""
        self._lock = threading.Lock()
        self._running: dict[str, str] = {}
        self._work: _Work | None = None
        self._since = self._last = float("-inf")

    def hear(self, event: events.Event) -> None:
        if isinstance(event, events.Waiting):
            if event.seconds >= timing.patience:
                note(_waiting(event))
        elif getattr(_local, "quiet", False) or not _wanted():
            return
        elif isinstance(event, events.CompileStarted):
            self._begin(event.key, event.request.source.name)
        elif isinstance(event, events.CompileFinished):
            self._end(event.key, f"compiled {event.request.source.name} in {event.seconds:.1f} s")
        elif isinstance(event, events.CompileFailed):
            self._end(event.key, f"{event.request.source.name} did not compile")

    def _begin(self, key: str, name: str) -> None:
        with self._lock:
            now = time.monotonic()
            if not self._running and now - self._last > timing.pause:
                self._since = now
            self._running[key] = name
            if self._work is None:
                start = self._since + timing.patience
                self._work = _Work(None, name, start=start, since=self._since)
            else:
                self._work.doing(name)

    def _end(self, key: str, text: str) -> None:
        with self._lock:
            self._running.pop(key, None)
            self._last = time.monotonic()
            if self._work is None:
                return
            self._work.done(text)
            if self._running:
                self._work.doing(next(iter(self._running.values())))
            else:
                self._work.close()
                self._work = None


def _waiting(event: events.Waiting) -> str:
    who = "another process" if event.pid is None else f"process {event.pid}"
    when = (
        "" if event.since is None else time.strftime(" since %H:%M:%S", time.localtime(event.since))
    )
    name = event.request.source.name
    return f"waiting {event.seconds:.0f} s for {name}, which {who} is compiling{when}"


_ambient = _Ambient()
events.subscribe(
    _ambient.hear,
    events.CompileStarted,
    events.CompileFinished,
    events.CompileFailed,
    events.Waiting,
)


def reset() -> None:
    """Forget what was shown and what runs: a forked child has none of its parent's threads."""
    global _terminal
    _terminal = _Terminal()
    _ambient.reset()


os.register_at_fork(after_in_child=reset)
