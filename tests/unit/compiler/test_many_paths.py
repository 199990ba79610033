"""Captures of many shapes and branches in one memory: programs of graph trees by meaning."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bringup import compiler, devices, graphs
from bringup.compiler import capture_memory, captured_calls
from bringup.errors import CaptureError

Run = Callable[[list[Any]], Any]


@pytest.fixture(params=["cpu", "npu"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Tensors are made there, no gradients are asked for, and nothing is captured yet."""
    devices.load_driver("sim")
    torch._dynamo.reset()
    gc.collect()
    capture_memory.memory_of.cache_clear()
    with torch.device(request.param), torch.no_grad():
        yield request.param


def served(function: Any, **options: Any) -> Any:
    given = {"mode": "serve", "shared_memory": True, **options}
    return torch.compile(function, backend="bringup", options=given, dynamic=True)


def captured(function: Callable[..., Any], most: int = 9, **options: Any) -> Run:
    """A compiled graph of the function, without a compiler."""
    options = {"shared_memory": True, "is_required": False, **options}
    run: Any = lambda given: [function(*given)]  # noqa: E731
    return captured_calls.captured(run, "f", frozenset(), most, **options)


def body(x: Tensor) -> Tensor:
    return (((x + 1) * 2 - x).relu() * 3).cumsum(0)


def report() -> compiler.CaptureReport:
    return compiler.captures()[-1]


def test_results_of_a_path_survive_others_and_the_path_itself(device: str) -> None:
    run, sizes = captured(body), (8, 3, 8, 5, 3, 1, 8, 13)
    inputs = [torch.randn(size, 16) for size in sizes]
    results = [run([x])[0] for x in inputs for _ in range(2)]  # all kept
    for x, first, second in zip(inputs, results[::2], results[1::2], strict=True):
        assert torch.equal(first, body(x))
        assert torch.equal(second, body(x))
    assert len({result.untyped_storage().data_ptr() for result in results}) == len(results)
    assert report().captures == 5


def test_a_branch_taken_anew_finds_results_of_the_other_alive(device: str) -> None:
    def branches(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x + x + 1
        torch._dynamo.graph_break()
        return (y, y * 3) if y.sum() > 0 else (y - 1, y.exp())

    run, before = served(branches), len(compiler.captures())
    inputs = [sign * torch.ones(size) for size in (5, 4) for sign in (-1, 1, -1)]
    results = [run(x) for _ in range(2) for x in inputs]
    for x, pair in zip(inputs * 2, results, strict=True):
        assert all(map(torch.equal, pair, branches(x)))
    assert len(compiler.captures()) >= before + 3  # before the break, and each branch


def test_expanded_and_strided_inputs_take_any_order(device: str) -> None:
    run = captured(lambda x: x.sin() + x.t().sum(1))
    wide = torch.randn(4, 4)
    for x in (wide, wide.t(), wide[:1].expand(4, 4), wide[:, ::2][:2], wide.t(), wide):
        assert torch.equal(run([x])[0], x.sin() + x.t().sum(1))


def test_one_path_feeds_the_next_and_itself(device: str) -> None:
    run, x = captured(body), torch.randn(4, 4)
    expected = x
    for size in (4, 2, 4, 3, 2):
        x, expected = run([x])[0][:size].clone(), body(expected)[:size]
        x = torch.cat([x, x])[: size + 1]
        expected = torch.cat([expected, expected])[: size + 1]
        assert torch.equal(x, expected)


def test_dropout_draws_what_eager_draws_on_every_path(device: str) -> None:
    run, sizes = captured(lambda x: nn.functional.dropout(x, 0.5)), (6, 3, 6, 6, 3)
    for step in (run, lambda given: [nn.functional.dropout(given[0], 0.5)]) * 2:
        torch.manual_seed(0)
        drawn = [step([torch.ones(size, 8)])[0].cpu() for size in sizes]
        if step is run:
            kept = drawn
    assert all(map(torch.equal, kept, drawn))


def test_shapes_share_what_the_largest_needs(device: str) -> None:
    run = captured(body)
    run([torch.randn(64, 64)])
    largest, own = report().shared_bytes, report().memory_bytes
    for rows in (32, 16, 8, 4):
        run([torch.randn(rows, 64)])
    assert report().shared_bytes == largest
    assert report().memory_bytes == own * 31 / 16  # copies of inputs are each one's own
    other = captured(lambda x: body(x) * 2)
    assert torch.equal(other([x := torch.randn(32, 64)])[0], body(x) * 2)
    assert report().shared_bytes == largest  # of another function, too


def test_results_in_place_share_nothing(device: str) -> None:
    run = captured(body, static_outputs=True)
    first, second = run([torch.ones(8, 8)])[0], run([torch.ones(4, 8)])[0]
    assert report().shared_bytes == 0
    assert torch.equal(first, body(torch.ones(8, 8)))
    assert torch.equal(second, body(torch.ones(4, 8)))


@pytest.mark.parametrize("is_shared", [True, False])
def test_captures_stay_within_the_limit_of_bytes(
    device: str, is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 256 << 10
    monkeypatch.setenv("BRINGUP_CAPTURE_MEMORY", "256K")
    run = captured(body, most=1000, shared_memory=is_shared)
    for rows in (*range(1, 40, 3), *range(38, 0, -3)):
        x = torch.randn(rows, 128)
        assert torch.equal(run([x])[0], body(x))
        told = report()
        assert told.memory_bytes + told.shared_bytes <= limit
    assert told.dropped > 0 < told.captures
    captures = told.captures + told.dropped
    run([x])  # the newest is there
    assert report().captures + report().dropped == captures


def test_what_was_used_longest_ago_makes_room_in_other_functions_too(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRINGUP_CAPTURE_MEMORY", "96K")
    old, used, x = captured(body), captured(body), torch.randn(16, 128)  # 8 KiB
    y = torch.randn(17, 128)
    old([x]), used([y]), old([x]), used([y])
    for rows in (18, 19, 20):
        used([torch.randn(rows, 128)])
        used([y])
    before, after = compiler.captures()[-2:]
    assert (before.captures, before.dropped) == (0, 1)
    assert after.captures > 1


def test_a_call_that_needs_more_than_the_limit_runs_as_it_is(
    device: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BRINGUP_CAPTURE_MEMORY", "16K")
    run, small, large = captured(body), torch.randn(2, 128), torch.randn(64, 128)
    for x in (small, large, small, large):
        assert torch.equal(run([x])[0], body(x))
    assert (report().captures, report().uncaptured, report().dropped) == (1, 1, 0)
    (told,) = [one.getMessage() for one in caplog.records if "more than" in one.getMessage()]
    assert "BRINGUP_CAPTURE_MEMORY" in told
    assert "f runs as it is" in told
    with pytest.raises(CaptureError, match="more than captures may hold"):
        captured(body, is_required=True)([large])
    monkeypatch.setenv("BRINGUP_CAPTURE_MEMORY", "0")
    captured(body)([large])
    assert report().captures == 1


@pytest.mark.parametrize("is_required", [False, True])
def test_captures_end_where_too_many_make_room_and_it_is_said_once(
    device: str,
    is_required: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(captured_calls, "MOST_DROPPED", 3)
    run = captured(body, most=2, is_required=is_required)
    for rows in (1, 2, 3, 4, 5, 6, 7, 8, 4, 5):
        x = torch.randn(rows, 4)
        assert torch.equal(run([x])[0], body(x))
    assert report().dropped == (8 if is_required else 3)
    told = [one.getMessage() for one in caplog.records if "more ways" in one.getMessage()]
    assert len(told) == 1
    assert ("captured again" if is_required else "run as they are from now on") in told[0]


def test_memory_of_what_was_dropped_goes_back(device: str) -> None:
    run = captured(body, most=1)
    run([torch.randn(512, 128)])
    entry = _kept()[-1][2]
    memory, graph = entry.memory, weakref.ref(entry._graph)
    del entry
    large = memory.pool.memory_bytes
    run([torch.randn(4, 128)])
    gc.collect()
    assert graph() is None
    assert memory.trim() < large
    assert torch.equal(run([x := torch.randn(4, 128)])[0], body(x))
    calls, key = _kept()[-1][:2]
    calls.drop(key)
    gc.collect()
    assert memory.trim() == 0


def _kept() -> list[Any]:
    return [one for calls in captured_calls.ALIVE.values() for one in calls.kept()]


def test_calls_of_threads_wait_for_a_capture_into_their_memory(device: str) -> None:
    run, known = captured(body), torch.randn(4, 4)
    run([known])
    inside, go_on, results = threading.Event(), threading.Event(), []

    def slow(x: Tensor) -> Tensor:
        inside.set()
        assert go_on.wait(60)
        return body(x)

    def call(run: Run, x: Tensor) -> None:
        with torch.no_grad():
            results.append((run([x])[0], x))

    threads = [threading.Thread(target=call, args=(captured(slow), torch.randn(6, 4)))]
    threads[0].start()
    assert inside.wait(60)
    threads.append(threading.Thread(target=call, args=(run, known)))
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert len(results) == 2
    for result, x in results:
        assert torch.equal(result, body(x))
    assert report().uncaptured == 0


def test_a_call_within_a_replay_of_its_memory_runs_as_it_is(device: str) -> None:
    inner, seen = captured(lambda x: x.cumsum(0) * 2), []

    def look(x: Tensor) -> None:  # on the cpu, in whose memory the capture around is
        with torch.no_grad():
            seen.append(inner([x])[0])

    def outer(x: Tensor) -> Tensor:
        graphs.host_function(look, x + 1)
        return x * 2

    run = captured(outer)
    for start in range(3):
        x = torch.arange(3.0) + start
        assert torch.equal(run([x])[0], x * 2)
        if device == "npu":
            torch.npu.synchronize()
        assert torch.equal(seen[-1], (x.cpu() + 1).cumsum(0) * 2)
    assert len(seen) == 3


def test_calls_of_many_threads_and_shapes_are_right(device: str) -> None:
    run, wrong = captured(body, most=3), []

    def call(seed: int) -> None:
        with torch.no_grad(), torch.device(device):
            for step in range(12):
                x = torch.full((1 + (seed + step) % 5, 4), float(seed * 100 + step))
                if not torch.equal(run([x])[0], body(x)):
                    wrong.append((seed, step))

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong
    assert report().uncaptured == 0


def test_training_in_reduced_overhead_takes_shapes_in_any_order() -> None:
    """Four forwards before the backward of the last, another shape between."""
    devices.load_driver("sim")
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to("npu")
    weight, run = model[0].weight, torch.compile(model, mode="reduce-overhead", dynamic=True)
    inputs = [torch.randn(rows, 4, device="npu") for rows in (3, 5, 3, 5)]
    for _ in range(2):
        outputs = [run(x) for x in inputs]
        grads = [torch.autograd.grad(y.sum(), weight)[0] for y in reversed(outputs)][::-1]
        for x, y, grad in zip(inputs, outputs, grads, strict=True):
            eager = model(x)
            torch.testing.assert_close(y, eager)
            torch.testing.assert_close(grad, torch.autograd.grad(eager.sum(), weight)[0])
    forward, backward = compiler.captures()[-2:]
    assert (forward.captures, backward.captures) == (2, 2)
    assert forward.shared_bytes == backward.shared_bytes > 0


def test_empty_batch_is_a_path_too(device: str) -> None:
    run = captured(body)
    for rows in (0, 2, 0, 2):
        assert torch.equal(run([x := torch.randn(rows, 4)])[0], body(x))
