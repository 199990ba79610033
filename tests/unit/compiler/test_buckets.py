"""`bucket_ladder`: the sizes to which lengths are padded."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bringup import compiler
from bringup.errors import ContractError


def padding(times: Mapping[int, int], ladder: Sequence[int]) -> int:
    """How many rows are padding, by the definition."""
    total = 0
    for length, often in times.items():
        bucket = next(size for size in ladder if size >= length)
        total += (bucket - length) * often
    return total


@given(
    st.dictionaries(st.integers(1, 40), st.integers(0, 9), min_size=1, max_size=7),
    st.integers(1, 5),
    st.sampled_from([1, 2, 8]),
)
def test_no_ladder_of_as_many_buckets_pads_less(
    times: dict[int, int], count: int, multiple: int
) -> None:
    if not any(times.values()):
        times[5] = 1
    ladder = compiler.bucket_ladder(times, count, multiple_of=multiple)
    seen = {length: often for length, often in times.items() if often}
    assert len(ladder) <= count
    assert list(ladder) == sorted(set(ladder))
    assert all(size % multiple == 0 for size in ladder)
    top = -(-max(seen) // multiple) * multiple
    assert ladder[-1] == top
    sizes = range(multiple, top, multiple)
    others = itertools.chain.from_iterable(
        itertools.combinations(sizes, n) for n in range(min(count, 3))
    )
    best = min(padding(seen, (*other, top)) for other in others)
    assert padding(seen, ladder) <= best


def test_lengths_may_be_given_one_by_one() -> None:
    lengths = [3, 3, 3, 9, 10, 50]
    assert compiler.bucket_ladder(lengths, 3) == (3, 10, 50)
    assert compiler.bucket_ladder(Counter(lengths), 3) == (3, 10, 50)
    assert compiler.bucket_ladder(lengths, 1) == (50,)
    assert compiler.bucket_ladder(iter(lengths), 2) == (10, 50)


def test_a_bucket_that_saves_nothing_is_left_out() -> None:
    assert compiler.bucket_ladder({4: 1, 8: 2}, 100) == (4, 8)
    assert compiler.bucket_ladder({3: 5, 4: 1, 8: 2}, 100, multiple_of=4) == (4, 8)
    assert compiler.bucket_ladder({0: 7, 8: 2}, 3) == (8,)


def test_many_distinct_lengths_take_a_moment_alone() -> None:
    ladder = compiler.bucket_ladder(range(1, 1025), 8)
    assert len(ladder) == 8
    assert ladder[-1] == 1024


def test_a_length_takes_the_first_bucket_that_holds_it() -> None:
    ladder = (16, 32, 64)
    expected = [(0, 16), (1, 16), (16, 16), (17, 32), (64, 64), (65, None)]
    assert [(n, compiler.bucket_for(n, ladder)) for n, _ in expected] == expected
    assert compiler.bucket_for(1, ()) is None


@pytest.mark.parametrize(
    ("lengths", "options", "words"),
    [
        ([1], {"count": 0}, "begin at 1, got 0 and 1"),
        ([1], {"count": 1, "multiple_of": 0}, "begin at 1, got 1 and 0"),
        ([], {"count": 1}, "no length above 0"),
        ([0], {"count": 1}, "no length above 0"),
        ({5: 0}, {"count": 1}, "no length above 0"),
        ([3, -1], {"count": 1}, "length -1 comes 1 times"),
        ({3: -2}, {"count": 1}, "length 3 comes -2 times"),
    ],
)
def test_what_is_no_histogram_is_refused(
    lengths: dict[int, int] | list[int], options: dict[str, int], words: str
) -> None:
    with pytest.raises(ContractError, match=f"bucket_ladder: .*{words}"):
        compiler.bucket_ladder(lengths, **options)
