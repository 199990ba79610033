"""What a run of passes is asked to do besides rewriting: verify, dump, stop early."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bringup import settings
from bringup.passes.run.dump import prepare


@dataclass(frozen=True)
class Rewrite:
    """One rewrite.

    Attributes:
        pass_name: the pass.
        graph: the name of the graph.
        nodes: the names of the nodes that were matched; none for a graph pass.
    """

    pass_name: str
    graph: str
    nodes: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f" at {', '.join(self.nodes)}" if self.nodes else ""
        return f"{self.pass_name} on {self.graph}{where}"


@dataclass
class RewriteLimit:
    """Lets only so many rewrites happen, in the order in which they come: to find a wrong one.

    Attributes:
        most: how many may happen; None for all.
        rewrites: every rewrite that happened. A graph pass counts as one where it changed
            something.
    """

    most: int | None
    rewrites: list[Rewrite] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def take(self, pass_name: str, graph: str, nodes: Sequence[str]) -> bool:
        """Return whether one more rewrite may happen; if so it is counted, and noted in `rewrites`.

        Args:
            pass_name: the pass that rewrites.
            graph: the name of the graph it rewrites.
            nodes: the names of the nodes to replace; empty for a graph pass.
        """
        with self._lock:
            if self.most is not None and len(self.rewrites) >= self.most:
                return False
            self.rewrites.append(Rewrite(pass_name, graph, tuple(nodes)))
            return True

    @property
    def log(self) -> list[str]:
        """Return the rewrites as text."""
        return [str(rewrite) for rewrite in self.rewrites]

    def give_back(self, pass_name: str, graph: str) -> None:
        """Forget that the graph pass `pass_name` was counted on `graph`: it changed nothing."""
        with self._lock:
            self.rewrites.remove(Rewrite(pass_name, graph))


_LIMITS: list[RewriteLimit] = []
_OF_ENVIRONMENT: dict[int, RewriteLimit] = {}


@contextmanager
def limit_rewrites(most: int | None) -> Iterator[RewriteLimit]:
    """Let at most `most` rewrites happen in this block, in all threads; None only counts them,
    in what the block gets: `with` returns it.
    """
    limit = RewriteLimit(most)
    _LIMITS.append(limit)
    try:
        yield limit
    finally:
        _LIMITS.remove(limit)


def _active_limit() -> RewriteLimit | None:
    if _LIMITS:
        return _LIMITS[-1]
    most = settings.pass_limit()
    return None if most is None else _OF_ENVIRONMENT.setdefault(most, RewriteLimit(most))


@dataclass(frozen=True)
class Controls:
    """How passes run: verified, dumped into a folder, limited in rewrites, `quiet` or not."""

    verify: bool = False
    dump: Path | None = None
    limit: RewriteLimit | None = None
    quiet: bool = False

    @classmethod
    def of(cls, options: Mapping[str, object]) -> Controls:
        """Return those of the options `verify` and `dump_passes`, else of the settings. Raises
        `TypeError` for another value, `BringupError` for a folder not writable.
        """
        verify, dump = options.get("verify"), options.get("dump_passes")
        if verify is not None and not isinstance(verify, bool):
            raise TypeError(f"option 'verify' must be True or False, got {verify!r}")
        if dump is not None and not isinstance(dump, (str, Path)):
            raise TypeError(f"option 'dump_passes' must be the path of a folder, got {dump!r}")
        folder = settings.pass_dump() if dump is None else Path(dump)
        if folder is not None:
            prepare(folder)
        return cls(settings.pass_verify() if verify is None else verify, folder, _active_limit())
