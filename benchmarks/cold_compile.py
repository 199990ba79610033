"""A small kernel that nobody has compiled before, from its text to a callable.

Peers are `tvm_ffi.cpp.load_inline` (`pip install apache-tvm-ffi`) and
`torch.utils.cpp_extension.load_inline`; torch's takes half a minute, so it runs once, and not at
all when quick. Besides, the bare compiler on the same file: what no kernel cache can go below.
"""

from __future__ import annotations

import subprocess
import time

from benchmarks._harness import Row, paired
from benchmarks._peers import OURS, TORCH, Workplace, peers, workplace
from bringup import jit

_NAME = "cold compile of a small kernel"


def _bare(place: Workplace) -> float:
    info = jit.toolchain("cpu")
    command = [str(info.path), *info.flags, "-o", "bare.so", str(place.kernel(OURS))]
    start = time.perf_counter_ns()
    subprocess.run(command, cwd=place.folder, check=True)
    return time.perf_counter_ns() - start


def run(quick: bool = False) -> list[Row]:
    """A row for each peer, measured in turns."""
    rows = []
    with workplace() as place, place.session(OURS) as ours:
        ours.get(place.kernel(OURS))
        for peer in peers(quick):
            rounds = 1 if peer is TORCH else 3 if quick else 9
            with place.session(peer) as theirs:
                if peer is not TORCH:
                    theirs.get(place.kernel(peer))
                samples = [
                    (ours.get(place.kernel(OURS)), theirs.get(place.kernel(peer)))
                    for _ in range(rounds)
                ]
            rows.append(paired(_NAME, peer.name, samples, budget=0.1))
        pairs = [(ours.get(place.kernel(OURS)), _bare(place)) for _ in range(3 if quick else 9)]
        rows.append(paired(_NAME, "bare c++ of the same file", pairs))
    return rows
