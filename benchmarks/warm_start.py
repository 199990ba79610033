"""A kernel whose binary is on disk, from its text to a callable: as the first kernel of a new
process, and again in the same process.

Imports are not counted. Peers as in `cold_compile`; besides, a bare `dlopen` of a library whose
source was hashed: what no kernel cache can go below.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from benchmarks._harness import Row, paired
from benchmarks._peers import OURS, TORCH, TVM, Peer, Workplace, peers, workplace

_DLOPEN = """
import ctypes, hashlib, json, sys, time
from pathlib import Path
def get(path):
    source, library = path.split(":")
    hashlib.sha256(Path(source).read_bytes()).hexdigest()
    return ctypes.CDLL(library).run
"""
_AGAIN = 31


def _start(peer: Peer, place: Workplace, source: Path) -> tuple[float, float]:
    """Nanoseconds of the first request of a process, and of another one for the same kernel."""
    with place.session(peer) as session:
        first = session.get(source)
        return first, statistics.median(session.get(source) for _ in range(_AGAIN))


def _library(place: Workplace) -> Path:
    (found,) = (place.folder / "ours").rglob("kernel.so")
    return found


def run(quick: bool = False) -> list[Row]:
    """Two rows for each peer, measured in turns."""
    rows = []
    with workplace() as place:
        source = place.kernel(OURS)
        _start(OURS, place, source)
        bare = Peer("bare dlopen", "ctypes", _DLOPEN, "", "CXX")
        arguments = {bare: Path(f"{source}:{_library(place)}")}
        for peer in [*peers(quick), bare]:
            theirs = arguments.get(peer) or place.kernel(peer)
            _start(peer, place, theirs)
            rounds = 3 if quick or peer is TORCH else 15
            samples = [
                (_start(OURS, place, source), _start(peer, place, theirs)) for _ in range(rounds)
            ]
            first = [(mine[0], other[0]) for mine, other in samples]
            again = [(mine[1], other[1]) for mine, other in samples]
            budget = 0.1 if peer is TVM else None
            note = "budget: 0.35 ms against 3.5 ms" if budget else ""
            name = "first kernel of a new process, from disk"
            rows.append(paired(name, peer.name, first, budget=budget, note=note))
            rows.append(paired("the same kernel again in that process", peer.name, again))
    return rows
