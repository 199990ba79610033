"""Padded lengths: a ladder of buckets with the least padding, and calls that are padded to them."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from bringup import settings
from bringup.compiler.inner_compiler import BoxedFunction
from bringup.compiler.padding_proof import LengthInput
from bringup.errors import ContractError

_LOG = settings.logger("compiler")
AUTO = tuple(size for power in range(4, 16) for size in (2**power, 3 * 2 ** (power - 1)))
"""What "auto" means: at most a third of a bucket is padding."""


def bucket_ladder(
    lengths: Mapping[int, int] | Iterable[int], count: int, *, multiple_of: int = 1
) -> tuple[int, ...]:
    """Return the buckets that pad lengths like these least: at most `count` rising sizes, of which
    the last holds the longest. Every length is padded up to the first bucket that holds it.

    Args:
        lengths: how often each length comes, or the lengths themselves (0 takes the first bucket).
        count: of buckets, from 1; fewer are returned where more would save nothing.
        multiple_of: sizes are multiples of it.

    The sum of padding is the least there is (dynamic programming over the cut positions, exact;
    quadratic in the number of distinct sizes).

    Raises:
        ContractError: there is no length above 0, a length or a number of times is negative, or
            `count` or `multiple_of` is less than 1.
    """
    if count < 1 or multiple_of < 1:
        raise ContractError(
            f"bucket_ladder: count and multiple_of begin at 1, got {count} and {multiple_of}"
        )
    times = Counter(dict(lengths) if isinstance(lengths, Mapping) else lengths)
    wrong = [length for length, often in times.items() if length < 0 or often < 0]
    if wrong:
        raise ContractError(f"bucket_ladder: length {wrong[0]} comes {times[wrong[0]]} times")
    rounded: Counter[int] = Counter()
    for length, often in times.items():
        if length and often:
            rounded[-(-length // multiple_of) * multiple_of] += often
    if not rounded:
        raise ContractError("bucket_ladder: there is no length above 0")
    sizes = sorted(rounded)
    return _least_padding(sizes, [rounded[size] for size in sizes], count)


def bucket_for(length: int, ladder: Sequence[int]) -> int | None:
    """Return the first bucket of a rising `ladder` that holds `length`; None where none does."""
    index = bisect.bisect_left(ladder, length)
    return ladder[index] if index < len(ladder) else None


def padded_calls(
    padded: BoxedFunction,
    exact: BoxedFunction,
    length: LengthInput,
    ladder: Sequence[int],
    name: str,
) -> BoxedFunction:
    """Return calls of a graph: `padded` up to a bucket of the `ladder`, `exact` beyond it."""
    usable: dict[int, bool] = {}  # by bucket: a table of positions may be shorter than one
    said: set[str] = set()

    def run_exactly(arguments: list[Any], reason: str) -> Any:
        if not said:
            said.add(reason)
            size = arguments[length.size]
            _LOG.warning("%s runs as it is, not captured: length %d %s", name, size, reason)
        return exact(arguments)

    def run(arguments: list[Any]) -> Any:
        size = arguments[length.size]
        bucket = bucket_for(size, ladder)
        if bucket is None:
            return run_exactly(arguments, f"is beyond the largest bucket, {ladder[-1]}")
        if not usable.get(bucket, True) or not length.fits(arguments, bucket):
            return run_exactly(
                arguments, f"cannot be padded to {bucket}, which the graph does not take"
            )
        if not all(0 <= value <= size for value in length.values(arguments)):
            return exact(arguments)  # which refuses it; padding would hide that
        given = list(arguments)
        given[length.size] = bucket
        for index, dim in length.padded.items():
            given[index] = _padded(given[index], dim, bucket)
        try:
            results = padded(given)
        except (IndexError, RuntimeError) as error:
            if usable.get(bucket) or size == bucket:
                raise
            usable[bucket] = False
            return run_exactly(arguments, f"cannot be padded to {bucket}: {error}")
        usable[bucket] = True
        arguments.clear()
        return tuple(
            size if index in length.given_back else _cut(result, dim, size, bucket)
            for index, (result, dim) in enumerate(zip(results, length.cut, strict=True))
        )

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _padded(tensor: torch.Tensor, dim: int, bucket: int) -> torch.Tensor:
    """With zeros behind it: token 0, which every embedding has."""
    size = tensor.shape[dim]
    if size == bucket:
        return tensor.contiguous()
    shape = list(tensor.shape)
    shape[dim] = bucket
    whole = tensor.new_zeros(shape)
    whole.narrow(dim, 0, size).copy_(tensor)
    return whole


def _cut(result: Any, dim: int | None, size: int, bucket: int) -> Any:
    """Return a tensor of its own: its neighbours in memory are no one's."""
    if dim is None or size == bucket:
        return result
    return result.narrow(dim, 0, size).clone()


def _least_padding(sizes: Sequence[int], often: Sequence[int], count: int) -> tuple[int, ...]:
    """Return which of the sizes are buckets: an optimal ladder has no others."""
    size = np.array(sizes, dtype=np.int64)
    number = np.concatenate(([0], np.cumsum(np.array(often, dtype=np.int64))))
    # the padded rows of sizes [0, j] in one bucket; what they hold is the same for every ladder
    best = size * number[1:]
    cuts: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
    for _ in range(min(count, len(sizes)) - 1):
        # sizes [0, i] in former buckets, (i, j] in one of size j; i = j adds no bucket
        first = np.empty(len(sizes), dtype=np.int64)
        total = np.empty_like(best)
        for j in range(len(sizes)):
            costs = best[: j + 1] + size[j] * (number[j + 1] - number[1 : j + 2])
            first[j] = j - int(np.argmin(costs[::-1]))  # of equal ones the last: no bucket for it
            total[j] = costs[first[j]]
        cuts.append(first)
        best = total
    ladder, j = [sizes[-1]], len(sizes) - 1
    for first in reversed(cuts):
        if first[j] != j:
            j = int(first[j])
            ladder.append(sizes[j])
    return tuple(reversed(ladder))
