"""Times of an operator beside peers and the machine, in the same rounds, and since earlier runs."""

from __future__ import annotations

import functools
import itertools
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bringup import jit, ops
from bringup._timing import interleaved
from bringup.cli.bench.subject import Case, Shape, Subject
from bringup.cli.trial.timing import Limits, Rounds
from bringup.errors import BringupError
from bringup.jit.ahead_of_time.tuning_results import processor_model
from bringup.report import Ratio, paired_ratio

_OURS, _TRIAD = "this", "triad"
_WORTH = 4 << 20  # bytes that a call of the triad moves at least, so that calling it costs nothing
_APART = 272  # elements between arrays, which would share sets of a cache at a power of two
_PRODUCT, _PRODUCTS = 1024, 10
_BEYOND = 1.05  # less is no regression, however sure
# STREAM's (McCalpin, https://www.cs.virginia.edu/stream/): a = b + s * c. Each thread goes over a
# part of its own again and again, so that the parts stay in its caches where they fit.
_SOURCE = """#include <bringup/kernel.h>
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const bringup::View<float, 1> first(args[0]);
  const bringup::View<const float, 1> second(args[1]), third(args[2]);
  float* __restrict a = &first(0);
  const float* __restrict b = &second(0);
  const float* __restrict c = &third(0);
  const int64_t repeats = *static_cast<const int64_t*>(args[3]);
  const int64_t threads = *static_cast<const int64_t*>(args[4]);
  const int64_t part = (first.size(0) + threads - 1) / threads;
  bringup::parallel_for(ctx, first.size(0), part, [=](int64_t begin, int64_t end) {
    for (int64_t turn = 0; turn < repeats; ++turn) {
      for (int64_t i = begin; i < end; ++i) a[i] = b[i] + 3.0f * c[i];
      asm volatile("" : : "r"(a) : "memory");  // every turn writes
    }
  });
  return 0;
}
"""


class OtherRunError(BringupError, ValueError):
    """A file of results that this run cannot be compared with."""


@dataclass(frozen=True)
class Row(Case):
    """A size.

    Attributes:
        ns: a call, in nanoseconds.
        peak_gbs: GB/s of STREAM's triad over as many bytes, in the fastest round.
        of_triad: the operator's GB/s over those of the triad, round by round.
        against: how many times as long as the operator each peer takes.
        before: how many times as long it takes as in the earlier run, by medians.
        is_slower: whether that is beyond the noise: the intervals of the time and of `of_triad` are
            both more than 5 % apart. The triad tells a slower kernel from a busy machine.
    """

    ns: Ratio
    peak_gbs: float
    of_triad: Ratio
    against: Mapping[str, Ratio]
    before: float | None = None
    is_slower: bool = False

    @property
    def gbs(self) -> float:
        return self.bytes / self.ns.median

    @property
    def gflops(self) -> float:
        return self.flops / self.ns.median


def measure(subject: Subject, shape: Shape, limits: Limits) -> Row:
    """Time a call of a size beside its peers and the triad. Raises what `Subject.case` raises."""
    case, sample = subject.case(shape)
    calls: dict[str, Callable[[], object]] = {
        name: functools.partial(call, *sample.args, **sample.kwargs)
        for name, call in ((_OURS, subject.call), *subject.peers.items())
    }
    calls[_TRIAD], triad_bytes = _triad(case.bytes)
    for call in calls.values():
        call()
    rounds = Rounds[str]()
    rounds.take(calls, baseline=_OURS, limits=limits)
    times = [taken[_OURS] for taken in rounds.taken]
    part, factor = rounds.ratio(_TRIAD, _OURS), case.bytes / triad_bytes
    return Row(
        **vars(case),
        ns=paired_ratio(times, [1.0] * len(times)),
        peak_gbs=triad_bytes / min(taken[_TRIAD] for taken in rounds.taken),
        of_triad=Ratio(factor * part.median, factor * part.low, factor * part.high, part.rounds),
        against={name: rounds.ratio(name, _OURS) for name in subject.peers},
    )


def _triad(size: float) -> tuple[Callable[[], object], float]:
    """Return a call of the triad over `size` bytes, by all threads, and the bytes that it moves."""
    count = max(int(size) // 12, 1)
    repeats = max(_WORTH // (12 * count), 1)
    a, b, c = torch.ones(3, count + _APART)[:, :count]
    call = functools.partial(_triad_operator(), a, b, c, repeats, torch.get_num_threads())
    return call, 12.0 * count * repeats


@functools.cache
def _triad_operator() -> ops.KernelOperator:
    return ops.kernel_op(
        "bringup_bench::triad(Tensor(a!) a, Tensor b, Tensor c, int repeats, int threads) -> ()",
        source=jit.Source(name="triad.cpp", text=_SOURCE),
        checks=[ops.same_shape("a", "b", "c"), ops.dtype("a", torch.float32)],
    )


def product_gflops(dtype: str) -> float:
    """Return the GFLOP/s of the fastest of 10 matrix products by torch; 0 where it has none."""
    left = torch.ones(_PRODUCT, _PRODUCT, dtype=getattr(torch, dtype))
    try:
        rounds = interleaved({"": functools.partial(torch.mm, left, left)})
        return 2 * _PRODUCT**3 / min(taken[""] for taken in itertools.islice(rounds, _PRODUCTS))
    except RuntimeError:  # of such a dtype
        return 0.0


def machine() -> dict[str, object]:
    """Return what results hold for."""
    processors, threads = len(os.sched_getaffinity(0)), torch.get_num_threads()
    return {"processor": processor_model(), "processors": processors, "threads": threads}


Earlier = Mapping[tuple[str, str], Any]
"""Rows of an earlier run by shape and dtype."""


def earlier(path: Path, operator: str) -> Earlier:
    """Return an earlier run. Raises `OtherRunError` for another operator, machine, or file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        rows = {(row["shape"], row["dtype"]): row for row in found["rows"]}
        known = {"operator": found["operator"], **found["machine"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OtherRunError(
            f"{path} is no file of `bringup bench ... --json FILE`: {error!r}"
        ) from error
    here = {"operator": operator, **machine()}
    differing = [
        f"{name} is {value!r} here, {known.get(name)!r} there"
        for name, value in here.items()
        if known.get(name) != value
    ]
    if differing:
        raise OtherRunError(f"{path} cannot be compared with: {', '.join(differing)}")
    return rows


def compared(row: Row, before: Earlier) -> Row:
    """Return the row beside that of an earlier run, where it has the size."""
    found = before.get((row.shape, row.dtype))
    if found is None:
        return row
    ns, part = found["ns"], found["of_triad"]
    slowest = float("inf") if ns["high"] is None else ns["high"]  # of too few rounds
    is_slower = row.ns.low > _BEYOND * slowest and _BEYOND * row.of_triad.high < part["low"]
    return replace(row, before=row.ns.median / ns["median"], is_slower=is_slower)
