"""Results of measuring tile sizes, in `<root>/v1/.tuning/<machine>.json`.

Processor, instruction set, threads and device name the file; compiler, version and tile sizes
outdate a result. A file that cannot be read is put aside.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache as memoised
from pathlib import Path
from typing import Any

from bringup import settings
from bringup._locks import Owner
from bringup.jit.files.identity import Stamp, bytes_digest, read_bytes, stamp
from bringup.jit.files.layout import StoreUnwritableError, write_durably
from bringup.jit.files.locks import build_lock
from bringup.jit.lookup import progress
from bringup.jit.store.cache import Cache
from bringup.jit.target.toolchain import Toolchain

_FORMAT = 1
_MOST_RESULTS = 4096
_LOCK_SECONDS = 600

_log = settings.logger("jit")


@dataclass(frozen=True)
class Machine:
    """What a measurement holds for, and for nothing else."""

    processor: str  # the processor's model
    isa: str  # the target's machine and instruction set, as a digest
    threads: int  # how many threads a kernel may use
    device: str = ""  # the device's architecture where that is not the processor

    @classmethod
    def here(cls, toolchain: Toolchain, threads: int, device: str = "") -> Machine:
        isa = bytes_digest("\n".join((toolchain.machine, *toolchain.isa)).encode())
        return cls(processor_model(), isa[:16], threads, device)

    @property
    def file_name(self) -> str:
        return f"{bytes_digest(repr(self).encode())[:16]}.json"


@memoised
def processor_model() -> str:
    """Return what /proc/cpuinfo calls the processor; elsewhere what Python knows."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            found.setdefault(name.strip(), value.strip())
    arm = [found[name] for name in ("CPU implementer", "CPU part", "CPU variant") if name in found]
    return found.get("model name") or " ".join(arm) or os.uname().machine


@dataclass(frozen=True)
class Tuning:
    """One result."""

    tile: str  # the macros of the fastest set, as `NAME=value`
    # What a run took, by set of macros; the others that could run among them.
    seconds: Mapping[str, float]
    basis: str  # digest over what else it holds for: compiler, version of bringup, tile sizes
    # When, in seconds since the epoch.
    measured: float = field(default_factory=lambda: round(time.time(), 3))


class TuningFile:
    """The results of one machine in one cache."""

    def __init__(self, store: Cache, machine: Machine) -> None:
        self._store = store
        self._machine = machine
        self._path = store.layout.path(".tuning") / machine.file_name
        self._seen: Stamp | None = None
        self._read: dict[str, Tuning] = {}
        self._unsaved: dict[str, Tuning] = {}

    def get(self, key: str) -> Tuning | None:
        if key in self._unsaved:
            return self._unsaved[key]
        try:
            now = stamp(self._path)
        except OSError:
            return None
        if now != self._seen:
            self._read = self._results()[0]
            self._seen = now
        return self._read.get(key)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes from measuring, which would disturb, and saving."""

        def waiting(seconds: float, owner: Owner) -> None:
            pid, _ = owner
            who = "another process" if pid is None else f"process {pid}"
            progress.note(f"waiting {seconds:.0f} s for {who}, which measures tile sizes")

        name = f"tuning-{self._path.stem}"
        with contextlib.ExitStack() as held:
            with contextlib.suppress(StoreUnwritableError):  # then there is nothing to lose
                lock = build_lock(self._store.layout, name, _LOCK_SECONDS, waiting)
                if not held.enter_context(lock):
                    _log.warning("another process measures tile sizes for too long: not waiting on")
            yield

    def save(self, key: str, result: Tuning) -> None:
        """Add a result to those that are in the file by now. Call it `alone`."""
        results, problem = self._results()
        kept = sorted(results.items(), key=lambda item: item[1].measured)[1 - _MOST_RESULTS :]
        content = {
            "bringup_tuning": _FORMAT,
            "machine": asdict(self._machine),
            "results": {name: asdict(one) for name, one in {**dict(kept), key: result}.items()},
        }
        try:
            if problem:
                aside = self._path.with_suffix(".broken")
                self._path.replace(aside)
                _log.warning("tuning results %s: %s; moved to %s", self._path, problem, aside)
            draft = self._store.layout.folder(".tuning") / f"{self._path.stem}.{os.getpid()}"
            write_durably(draft, json.dumps(content, indent=1).encode())
            draft.replace(self._path)
        except (OSError, StoreUnwritableError) as error:
            self._unsaved[key] = result
            _log.warning("tile sizes that were measured hold for this process only: %s", error)

    def _results(self) -> tuple[dict[str, Tuning], str]:
        """Return what the file has, and what is wrong with it."""
        try:
            content = json.loads(read_bytes(str(self._path)))
            if content["bringup_tuning"] != _FORMAT:
                return {}, f"they are of format {content['bringup_tuning']!r}, not {_FORMAT}"
            if content["machine"] != asdict(self._machine):
                return {}, f"they are of another machine, {content['machine']}"
            return {key: _checked(one) for key, one in content["results"].items()}, ""
        except FileNotFoundError:
            return {}, ""
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return {}, f"they cannot be read ({error!r})"


def _checked(one: Mapping[str, Any]) -> Tuning:
    seconds = {str(tile): float(value) for tile, value in one["seconds"].items()}
    return Tuning(str(one["tile"]), seconds, str(one["basis"]), float(one["measured"]))
