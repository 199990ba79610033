"""From the properties of a call to its binary, on a hit: what every call of an operator pays.

Ours is the packed 128-bit key and the table of native/runtime/variant_table.h. The peer is the
scheme of torch_catlass, written anew from its description: string maps, macros, a sorted text,
SHA-256, a map under a mutex. Both run in C++, for the same calls of 300 kernels; processor time of
the thread counts.
"""

from __future__ import annotations

import ctypes
import hashlib
import statistics
from pathlib import Path

from benchmarks._harness import Row
from bringup import jit

_HERE = Path(__file__).parent
_KERNELS = 300
_BUDGET_NS = 20.0


def _library() -> ctypes.CDLL:
    source = jit.Source(_HERE / "csrc" / "lookup.cpp", entry="lookup_ours")
    flags = [f"-I{_HERE.parent / 'native'}", "-std=c++20"]
    library = ctypes.CDLL(str(jit.compile(source, flags=flags).path))
    for name in ("lookup_ours", "lookup_peers"):
        getattr(library, name).restype = ctypes.c_double
    digest = ctypes.create_string_buffer(65)
    library.lookup_sha256(b"bringup" * 20, digest)
    if digest.value.decode() != hashlib.sha256(b"bringup" * 20).hexdigest():
        raise AssertionError("the peer's SHA-256 is wrong: its time would mean nothing")
    return library


def run(*, quick: bool = False) -> list[Row]:
    """Against the peer, and against the budget with one and with two
    threads.
    """
    library = _library()
    rounds, lookups = (5, 20_000) if quick else (31, 200_000)
    one, two, peer = [], [], []
    for _ in range(rounds):
        one.append(library.lookup_ours(_KERNELS, lookups, 1))
        two.append(library.lookup_ours(_KERNELS, lookups, 2))
        peer.append(library.lookup_peers(_KERNELS, lookups // 20))
    ratio = statistics.median(ours / theirs for ours, theirs in zip(one, peer, strict=True))
    ours, both = statistics.median(one), statistics.median(two)
    return [
        Row("lookup on a hit", "strings and SHA-256", ratio, ours, statistics.median(peer)),
        Row("lookup on a hit", "20 ns", ours / _BUDGET_NS, ours, _BUDGET_NS, 1.0),
        Row("lookup on a hit, 2 threads", "20 ns", both / _BUDGET_NS, both, _BUDGET_NS, 1.0),
    ]
