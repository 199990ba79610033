"""The first kernel of a new process whose binary is on disk, from its text to a callable.

Imports are not counted. Peers as in `cold_compile`; besides, a bare `dlopen` of a library whose
source was hashed: what no kernel cache can go below.
"""

from __future__ import annotations

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


def _first(peer: Peer, place: Workplace, source: Path) -> float:
    with place.session(peer) as session:
        return session.get(source)


def _library(place: Workplace) -> Path:
    (found,) = (place.folder / "ours").rglob("kernel.so")
    return found


def run(quick: bool = False) -> list[Row]:
    """A row for each peer, measured in turns."""
    name, rows = "first kernel of a new process, from disk", []
    with workplace() as place:
        source = place.kernel(OURS)
        _first(OURS, place, source)
        bare = Peer("bare dlopen", "ctypes", _DLOPEN, "", "CXX")
        arguments = {bare: Path(f"{source}:{_library(place)}")}
        for peer in [*peers(quick), bare]:
            theirs = arguments.get(peer) or place.kernel(peer)
            _first(peer, place, theirs)
            rounds = 3 if quick or peer is TORCH else 15
            samples = [
                (_first(OURS, place, source), _first(peer, place, theirs)) for _ in range(rounds)
            ]
            budget = 0.06 if peer is TVM else None
            note = "budget: 0.2 ms against 3.5 ms" if budget else ""
            rows.append(paired(name, peer.name, samples, budget=budget, note=note))
    return rows
