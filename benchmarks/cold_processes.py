"""Eight processes that want one kernel nobody has compiled, and a builder that is killed with
`kill -9` while the next one waits: who fails, how many compiles there are, how long it takes.

Peers as in `cold_compile`. torch's lock stays behind when its holder is killed, so that its next
run waits for ever: it is given up after a while, and the row says so.
"""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass

from benchmarks._harness import Row
from benchmarks._peers import OURS, TORCH, Peer, Session, Workplace, peers, workplace

_RANKS = 8
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class _Job:
    """One cold start of several processes."""

    seconds: float
    failed: int
    compiles: int


def _cold_start(peer: Peer, place: Workplace) -> _Job:
    sessions = [Session(peer, place) for _ in range(_RANKS)]
    source, before = place.kernel(peer), place.builds()
    start = time.perf_counter()
    for session in sessions:
        session.ask(source)
    answers = [session.answer() for session in sessions]
    seconds = time.perf_counter() - start
    for session in sessions:
        session.close()
    return _Job(seconds, answers.count(None), place.builds() - before)


def _summary(jobs: list[_Job]) -> str:
    failed, compiles = sum(job.failed for job in jobs), {job.compiles for job in jobs}
    return f"{failed} of {_RANKS * len(jobs)} failed, {max(compiles)} compiled at most"


def _cold_rows(place: Workplace, quick: bool) -> list[Row]:
    rounds = 3 if quick else 13
    ours = [_cold_start(OURS, place) for _ in range(rounds)]
    mine = statistics.median(job.seconds for job in ours)
    rows = []
    for peer in peers(quick):
        jobs = [_cold_start(peer, place) for _ in range(1 if peer is TORCH else min(rounds, 5))]
        theirs = statistics.median(job.seconds for job in jobs)
        name = f"{_RANKS} processes, cold: {_summary(ours)}"
        peer_name = f"{peer.name}: {_summary(jobs)}"
        rows.append(Row(name, peer_name, mine / theirs, mine * 1e9, theirs * 1e9))
    return rows


def _compile_seconds(peer: Peer, place: Workplace) -> float:
    with place.session(peer) as session:
        return session.get(place.kernel(peer)) / 1e9


def _after_a_kill(peer: Peer, place: Workplace) -> float | None:
    """Seconds that the next run takes after a builder was killed; None when it was given up."""
    builder, following = Session(peer, place), Session(peer, place)
    source, before = place.kernel(peer), place.builds()
    builder.ask(source)
    while place.builds() == before:
        time.sleep(0.001)
    builder.kill()
    start = time.perf_counter()
    giving_up = threading.Timer(_PATIENCE_S, following.kill)
    giving_up.start()
    try:
        following.ask(source)
        answer = following.answer()
        return time.perf_counter() - start if answer is not None else None
    except RuntimeError:
        return None
    finally:
        giving_up.cancel()
        following.kill()


def _kill_row(place: Workplace, peer: Peer, rounds: int) -> Row:
    """The next run against two compiles of the same system."""
    compiles = statistics.median(_compile_seconds(peer, place) for _ in range(rounds))
    waits = [_after_a_kill(peer, place) for _ in range(rounds)]
    lost = waits.count(None)
    took = statistics.median(_PATIENCE_S if wait is None else wait for wait in waits)
    name = f"next run after kill -9 in a build: {peer.name}"
    if lost:
        name += f", {lost} of {rounds} given up after {_PATIENCE_S:.0f} s"
    limit = 2 * compiles
    budget = 1.0 if peer is OURS else None
    return Row(name, "two of its compiles", took / limit, took * 1e9, limit * 1e9, budget)


def run(quick: bool = False) -> list[Row]:
    """Rows of cold starts, then of kills."""
    with workplace() as place:
        rows = _cold_rows(place, quick)
        for peer in [OURS, *peers(quick)]:
            rows.append(_kill_row(place, peer, 1 if peer is TORCH else 3 if quick else 7))
    return rows
