"""Inputs that a model writes are written where they lie, and never too early."""

import logging

import pytest
import torch

import bringup.compiler  # noqa: F401 - makes the backend known


def write_row(cache, x, at):
    cache.index_copy_(1, at, x)
    return cache @ cache.t()


def write_two_parts(cache, x, at):
    cache.index_copy_(1, at, x)
    cache[:, 2:4] = x.sum()
    cache[0] = 7
    return cache.cos()


def read_before(cache, x, at):
    before = cache.sum()
    cache.index_copy_(1, at, x)
    return before + cache.sum()


def read_former_content_late(cache, x, at):
    former = cache.clone()
    view = former.t()
    cache.index_copy_(1, at, x)
    return view @ cache


def write_and_return(cache, x, at):
    cache.index_copy_(1, at, x)
    return cache, cache.t()


def write_what_it_holds(cache, x, at):
    cache.index_copy_(1, at, cache[:, :1])
    return x + 1


def write_a_shifted_part_of_itself(cache, x, at):
    cache[:, 1:] = cache[:, :-1].clone()
    return cache * x


def write_all(cache, x, at):
    cache.copy_(cache.exp() + x)
    return cache.sum()


def count(cache, x, at):
    cache.add_(1)
    cache.mul_(2)
    return x + cache[:, :1]


WRITES = {
    write_row: 1,
    write_two_parts: 1,
    read_before: 1,
    read_former_content_late: 1,
    write_what_it_holds: 1,
    write_a_shifted_part_of_itself: 1,
    write_all: 1,
    count: 1,
    write_and_return: 1,
}


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


def static_cache():
    torch.manual_seed(0)
    cache = torch.randn(4, 8)
    torch._dynamo.mark_static_address(cache)
    return cache


@torch.no_grad()
@pytest.mark.parametrize("mode", ["default", "serve"])
@pytest.mark.parametrize("function", WRITES)
def test_cache_and_results_are_those_of_eager(function, mode, caplog):
    caplog.set_level(logging.INFO, logger="bringup.compiler")
    ours, theirs = static_cache(), static_cache()
    address = ours.data_ptr()
    run = torch.compile(function, backend="bringup", mode=mode)
    for place in range(5):
        x, at = torch.randn(4, 1), torch.tensor([place])
        got, expected = run(ours, x, at), function(theirs, x, at)
        torch.testing.assert_close(got, expected)
        torch.testing.assert_close(ours, theirs)
    assert ours.data_ptr() == address
    said = [line for line in caplog.messages if "where they lie" in line]
    assert said == [f"this graph writes {WRITES[function]} of its inputs where they lie"]


@torch.no_grad()
def test_captured_graph_writes_no_input_that_may_lie_elsewhere_at_the_next_call(caplog):
    caplog.set_level(logging.INFO, logger="bringup.compiler")
    run = torch.compile(write_row, backend="bringup", mode="serve")
    for place in range(3):
        ours, x, at = torch.zeros(4, 8), torch.randn(4, 1), torch.tensor([place])
        theirs = ours.clone()
        torch.testing.assert_close(run(ours, x, at), write_row(theirs, x, at))
        torch.testing.assert_close(ours, theirs)
    assert not [line for line in caplog.messages if "where they lie" in line]


@torch.no_grad()
def test_two_inputs_that_share_memory():
    def both(first, second, x, at):
        first.index_copy_(1, at, x)
        return second.sum() + first.sum()

    whole = static_cache()
    other = whole.clone()
    run = torch.compile(both, backend="bringup", mode="default")
    x, at = torch.randn(4, 1), torch.tensor([3])
    for _ in range(2):
        got = run(whole, whole[:, 2:6], x, at)
        torch.testing.assert_close(got, both(other, other[:, 2:6], x, at))
        torch.testing.assert_close(whole, other)


@torch.no_grad()
def test_one_row_is_written_and_not_the_whole_cache():
    cache = static_cache()
    run = torch.compile(write_row, backend="bringup")
    x, at = torch.randn(4, 1), torch.tensor([2])
    run(cache, x, at)
    with torch.profiler.profile() as profile:
        run(cache, x, at)
    names = {event.key for event in profile.key_averages()}
    assert "aten::index_copy_" in names
    assert "aten::clone" not in names
