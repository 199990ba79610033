"""The simulator's collectives (BRINGUP_HAS_COLLECTIVES), as a vendor's library calls them."""

from __future__ import annotations

import ctypes as c
import functools
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.unit.devices.comm_ranks import (
    BAND,
    BOR,
    BXOR,
    MAX,
    MIN,
    PRODUCT,
    SUM,
    Rank,
    as_ranks,
    new_id,
)  # fmt: skip

from bringup import _native, devices
from bringup.devices import _driver_abi as abi

FOLD: dict[int, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    SUM: torch.add, PRODUCT: torch.mul, MIN: torch.minimum, MAX: torch.maximum,
    BAND: torch.bitwise_and, BOR: torch.bitwise_or, BXOR: torch.bitwise_xor,
}  # fmt: skip
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float32, torch.float64)


def bit(dtype: torch.dtype) -> int:
    return 1 << abi.DTYPES.index(str(dtype).removeprefix("torch."))


def numbers(dtype: torch.dtype, count: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    if dtype.is_floating_point:
        return torch.randn(count, dtype=dtype, generator=generator)
    return torch.randint(torch.iinfo(dtype).min // 2, torch.iinfo(dtype).max, (count,),
                         dtype=dtype, generator=generator)  # fmt: skip


@pytest.mark.parametrize("size", [1, 3])
def test_every_reduction_gives_all_ranks_what_the_numbers_fold_to_in_rank_order(size: int) -> None:
    cases = [
        (dtype, reduction, count)
        for dtype in INTEGERS + FLOATS
        for reduction in FOLD
        for count in (1, 70_001)
        if dtype in INTEGERS or reduction < BAND
    ]

    def reduce(of: Rank) -> list[tuple[torch.Tensor, torch.Tensor]]:
        got = []
        for dtype, reduction, count in cases:
            x = of.tensor(numbers(dtype, count * size, of.rank))
            part, whole = torch.empty_like(x[:count]), torch.empty_like(x)
            of.settle()
            asked = (bit(dtype), reduction)
            assert of.give("all_reduce", x, whole, count * size, *asked) == abi.Status.OK
            assert of.give("reduce_scatter", x, part, count, *asked) == abi.Status.OK
            assert of.finish() == ""
            got.append((whole.cpu(), part.cpu()))
        return got

    results = as_ranks(size, reduce)
    for case, (dtype, reduction, count) in enumerate(cases):
        parts = [numbers(dtype, count * size, rank) for rank in range(size)]
        expected = functools.reduce(FOLD[reduction], parts)
        for rank in range(size):
            whole, part = results[rank][case]
            assert torch.equal(whole, expected), (dtype, reduction, rank)
            assert torch.equal(part, expected[rank * count :][:count]), (dtype, reduction, rank)


def test_what_is_not_computed_is_unsupported_for_every_rank_and_breaks_nothing() -> None:
    def ask(of: Rank) -> tuple[abi.Status, str, float]:
        x = of.tensor(torch.ones(4))
        status = of.give("all_reduce", x, x, 4, bit(torch.float16), SUM)
        words = of.words()
        assert of.give("all_reduce", x, x, 4, bit(torch.float32), SUM) == abi.Status.OK
        return status, words, float(of.finish() == "" and x[0].item())

    for status, words, value in as_ranks(2, ask):
        assert (status, value) == (abi.Status.UNSUPPORTED, 2)
        assert "dtype" in words


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (
            [("all_reduce", True, 4, 1 << 11, SUM), ("all_reduce", True, 5, 1 << 11, SUM)],
            "bytes where",
        ),
        ([("broadcast", False, 4, 0), ("all_reduce", True, 1, 1 << 11, SUM)], "is at a broadcast"),
    ],
)
def test_ranks_that_do_not_fit_together_fail_in_words(
    asked: list[tuple[str, bool, int]], reason: str
) -> None:
    def collide(of: Rank) -> tuple[str, abi.Status]:
        x = of.tensor(torch.ones(64))
        function, has_result, *rest = asked[of.rank]
        assert of.give(function, *[x] * (1 + has_result), *rest) == abi.Status.OK
        return of.finish(), of.call("comm_query", of.comm)

    found = as_ranks(2, collide)
    assert any(reason in words for words, _ in found), found
    assert abi.Status.ERROR in [status for _, status in found]


def test_a_rank_that_is_taken_is_refused_and_its_communicator_works_on() -> None:
    given = new_id(abi.open_table(_native.sim_driver_path()))

    def join(rank: int) -> str:
        try:
            made = Rank(given, rank, 2)
        except AssertionError as error:
            refusals.append(str(error))
            refused.set()
            return "refused"
        x = made.tensor(torch.ones(4))
        assert made.give("all_reduce", x, x, 4, bit(x.dtype), SUM) == abi.Status.OK
        failure = made.finish()
        made.close()
        return failure

    refusals: list[str] = []
    refused = threading.Event()
    with ThreadPoolExecutor(3) as pool:
        twice = [pool.submit(join, 0) for _ in range(2)]
        assert refused.wait(60)  # before rank 1 comes
        last = pool.submit(join, 1)
        found = sorted(each.result() for each in (*twice, last))
    assert found == ["", "", "refused"]
    assert "rank 0 is in the communicator already" in refusals[0]


def test_captured_collectives_run_at_each_launch_of_the_graph() -> None:
    def capture(of: Rank) -> list[float]:
        x = of.tensor(torch.full((1000,), float(of.rank + 1)))
        graph = c.c_void_p()
        assert of.call("graph_create", of.device, c.byref(graph)) == abi.Status.OK
        assert of.call("stream_capture_begin", of.device, of.handle) == abi.Status.OK
        assert of.give("all_reduce", x, x, 1000, bit(x.dtype), SUM) == abi.Status.OK
        assert of.call("stream_capture_end", of.device, of.handle, graph) == abi.Status.OK
        values = [x[-1].item()]
        for _ in range(3):
            assert of.call("graph_launch", graph, of.handle) == abi.Status.OK
            assert of.finish() == ""
            values.append(x[-1].item())
        assert of.call("graph_destroy", graph) == abi.Status.OK
        return values

    assert as_ranks(2, capture) == [[1, 3, 6, 12], [2, 3, 6, 12]]


def test_an_injected_failure_of_one_rank_fails_its_peers_too() -> None:
    def fail(of: Rank) -> str:
        x = of.tensor(torch.ones(100_000))
        assert of.give("all_reduce", x, x, x.numel(), bit(x.dtype), SUM) == abi.Status.OK
        return of.finish()

    with devices.sim.faults(device=1, fail="all_reduce", fail_async=True) as faults:
        other, injected = as_ranks(2, fail)
    assert faults.functions["all_reduce"].injected == 1
    assert "injected failure" in injected
    assert "rank 1 left the communicator" in other


def test_a_reset_of_the_device_ends_what_waits_for_a_peer() -> None:
    over = threading.Event()

    def wait(of: Rank) -> abi.Status:
        x = of.tensor(torch.ones(4))
        if of.rank == 0:
            assert over.wait(60)
            return abi.Status.OK
        try:
            assert of.give("broadcast", x, 16, 0) == abi.Status.OK
            assert of.call("device_reset", of.device) == abi.Status.OK
            return of.call("comm_query", of.comm)
        finally:
            over.set()

    assert as_ranks(2, wait, seconds=600)[1] == abi.Status.ERROR


PEER = """
import sys, torch
from bringup import devices
devices.load_driver("sim")
from tests.unit.devices.comm_ranks import Rank
rank = Rank(bytes.fromhex(sys.argv[1]), 1, 2, 60)
x = rank.tensor(torch.full((300_000,), 2.0))
assert rank.give("all_reduce", x, x, x.numel(), 1 << 11, 0) == 0 and rank.finish() == ""
print(x[-1].item(), flush=True)
if sys.argv[2] == "stays":
    rank.give("broadcast", x, 4, 0)  # for which rank 0 does not come
    sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["stays", "ends"])
def test_a_process_that_is_killed_or_ends_is_a_failure_of_its_peers(end: str) -> None:
    table = abi.open_table(_native.sim_driver_path())
    given = new_id(table)
    command = [sys.executable, "-c", PEER, given.hex(), end]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        of = Rank(given, 0, 2, 600)
        x = of.tensor(torch.ones(300_000))
        assert of.give("all_reduce", x, x, x.numel(), bit(x.dtype), SUM) == abi.Status.OK
        assert of.finish() == ""
        assert x[-1].item() == 3
        assert process.stdout.readline() == "3.0\n"
        assert of.give("recv", x, 4, 1) == abi.Status.OK
        if end == "stays":
            process.kill()
        words = of.finish()  # it has 600 s, and needs none of them
        assert process.wait(60) == (-9 if end == "stays" else 0)
    assert "rank 1 left the communicator or ended" in words
    of.close()
