"""What a replay knows of memory, against an oracle that keeps every byte."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bringup.devices._replay_memory import Allocation, Content, Memory

SIZE = 24
BASES = (1000, 2000)
PLACE = st.builds(
    lambda base, begin, size: (base, begin, min(begin + size, SIZE)),
    st.sampled_from(BASES),
    st.integers(0, SIZE - 1),
    st.integers(1, SIZE),
)
CONTENT = st.sampled_from([Content.KNOWN, Content.UNKNOWN])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.one_of(st.tuples(PLACE, CONTENT), st.tuples(PLACE, PLACE)), max_size=12),
    PLACE,
)
def test_writes_and_copies_leave_what_they_leave_byte_by_byte(steps: list, asked: tuple) -> None:
    memory = Memory()
    oracle = {}
    for base in BASES:
        memory.add(base, base + 10, SIZE)
        oracle.update({base + i: Content.UNWRITTEN for i in range(SIZE)})
    for (base, begin, end), what in steps:
        if isinstance(what, Content):
            memory.write(base + begin, end - begin, what)
            oracle.update({base + i: what for i in range(begin, end)})
        else:
            size = min(end - begin, what[2] - what[1])
            source, target = what[0] + what[1], base + begin
            memory.copy(target, source, size)
            oracle.update(
                {target + i: v for i, v in enumerate([oracle[source + i] for i in range(size)])}
            )
    base, begin, end = asked
    expected = [oracle[base + i] for i in range(begin, end)]
    found = memory.content(base + begin, end - begin)
    assert found is (Content.UNKNOWN if Content.UNKNOWN in expected else expected[0])


def test_an_address_is_found_within_its_allocation_only() -> None:
    memory = Memory()
    memory.add(1000, 5000, 8)
    assert memory.place(1007) == 5007
    assert memory.place(1007, 2) is None
    assert memory.place(1008) is None
    assert memory.place(999) is None
    memory.remove(1000)
    assert memory.place(1000) is None
    assert memory.content(1000, 1) is Content.UNKNOWN


def test_an_address_that_is_given_anew_is_the_new_memory() -> None:
    memory = Memory()
    memory.add(1000, 5000, 8)
    memory.write(1000, 8, Content.KNOWN)
    memory.add(1000, 7000, 16)
    assert memory.place(1015) == 7015
    assert memory.content(1000, 8) is Content.UNWRITTEN
    memory.remove(1000)
    assert memory.place(1000) is None


def test_of_memory_that_the_host_shares_nothing_is_known() -> None:
    allocation = Allocation(0, 0, 8, is_shared=True)
    allocation.write(0, 8, Content.KNOWN)
    assert allocation.content(0, 4) is Content.UNKNOWN


def test_neighbours_of_one_content_become_one_part() -> None:
    allocation = Allocation(0, 0, 8)
    for begin in (4, 0, 2, 6):
        allocation.write(begin, begin + 2, Content.KNOWN)
    assert allocation.parts(0, 8) == [(0, 8, Content.KNOWN)]
